--[[
  block: denies all checks of a key for a time, or lifts the block. The used units
  stay.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; duration (us, 0 lifts the block);
           1 if the block is the member `block` of a log
  Returns  now, or an error string
  Writes   the state, with the block in its text or in that member, and the
           expiry, which covers the block
]]
local afford, charge = algorithm(1)
local key, duration = KEYS[1], tonumber(ARGV[5])
return failure(function()
  local _, blocked, _, a, b, c = afford(key, 0, 1, '')
  if duration == 0 and blocked == 0 then return end
  local ends = duration > 0 and math.min(now + duration, EXACT) or 0
  if ARGV[6] == '1' then
    if ends > 0 then call('ZADD', key, format(WHOLE, ends), 'block') else call('ZREM', key, 'block') end
  end
  charge(key, 1, 1, 0, 1, ends, true, a, b, c)
end) or now
