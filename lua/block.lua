--[[
  block: denies everything for a time, or lifts that. What was used stays.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; how long (us, 0 lifts the block);
           type of the key, hash or zset
  Returns  now, or a string that says why it failed
  Writes   blocked_until (hash) or the member `block` (zset); the expiry covers it
]]
local afford, charge = algorithm(1)
local key, span, is_zset = KEYS[1], tonumber(ARGV[5]), ARGV[6] == 'zset'
local own, blocked, _, a, b, c = afford(key, 0, 1, '')
if not own then return blocked end
if span == 0 and blocked == 0 then return now end
local done
if span > 0 then
  blocked = min(now + span, EXACT)
  local text = format('%.0f', blocked)
  done = is_zset and try('ZADD', key, text, 'block') or try('HSET', key, 'blocked_until', text)
else
  blocked = 0
  done = is_zset and try('ZREM', key, 'block') or try('HDEL', key, 'blocked_until')
end
if type(done) == 'table' then return done.err end
return charge(key, 1, 1, 0, 1, blocked, true, a, b, c) or now
