--[[
  block: denies everything for a time, or lifts that. What was used stays.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; how long (us, 0 lifts the block);
           1 where a block is the member `block` of a log
  Returns  now, or a string that says why it failed
  Writes   the state, whose text says it or beside which the member does; the
           expiry covers it
]]
local afford, charge = algorithm(1)
local key, span = KEYS[1], tonumber(ARGV[5])
return failure(function()
  local _, blocked, _, a, b, c = afford(key, 0, 1, '')
  if span == 0 and blocked == 0 then return end
  local ends = span > 0 and math.min(now + span, EXACT) or 0
  if ARGV[6] == '1' then
    if ends > 0 then call('ZADD', key, format(WHOLE, ends), 'block') else call('ZREM', key, 'block') end
  end
  charge(key, 1, 1, 0, 1, ends, true, a, b, c)
end) or now
