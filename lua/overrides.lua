--[[
  overrides: reads the operators' overrides if they have changed.

  KEYS     hash: overrides by target, and the time of the last change
  ARGV     the change that the caller knows ('' for none)
  Returns  {now, last change ('' for none)}, followed by all fields and texts
           unless the last change is ARGV[1]
  Writes   nothing
]]
local key = KEYS[1]
local changed = call('HGET', key, 'changed') or ''
local reply = { now, changed }
if changed ~= ARGV[1] and changed ~= '' then
  local found = call('HGETALL', key)
  for i = 1, #found do
    reply[i + 2] = found[i]
  end
end
return reply
