--[[
  orders: what operators have ordered for the whole fleet, if that has changed.

  KEYS     hash: orders by what they are for, and when they were last changed
  ARGV     when the caller's were ('' for never)
  Returns  {now, when they were last changed ('' for never)}, and unless that is
           ARGV[1] all fields and texts after it
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
