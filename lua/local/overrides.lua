--[[
  overrides: reads the operators' overrides if they have changed.

  KEYS     hash: overrides by target, and the time of the last change
  ARGV     the change that the caller knows ('' for none); maximum number of
           overrides; maximum bytes of a field and its text
  Returns  {now, last change ('' for none), number left out}, followed by the
           fields and texts up to these limits unless the last change is ARGV[1]
  Writes   nothing
]]
local key, max_overrides, max_bytes = KEYS[1], ARGV[2] + 0, ARGV[3] + 0
-- Another program can have written the hash.
local changed = string.sub(call('HGET', key, 'changed') or '', 1, 32)
local reply, count = { now, changed, 0 }, 0
if changed ~= ARGV[1] and changed ~= '' then
  local found = call('HGETALL', key)
  for i = 1, #found, 2 do
    local field, text = found[i], found[i + 1]
    if field ~= 'changed' then
      if count < max_overrides and #field + #text <= max_bytes then
        count = count + 1
        reply[#reply + 1] = field
        reply[#reply + 1] = text
      else
        reply[3] = reply[3] + 1
      end
    end
  end
end
return reply
