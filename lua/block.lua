--[[
  block: denies everything for a time, or lifts that. What was used stays.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; how long (us, 0 lifts the block);
           where a block is kept, `level`, `field` or `member`
  Returns  now, or a string that says why it failed
  Writes   with the level, the field blocked_until, or the member `block` of a log;
           the expiry covers it
]]
local afford, charge = algorithm(1)
local key, span, place = KEYS[1], tonumber(ARGV[5]), ARGV[6]
local own, blocked, _, a, b, c = afford(key, 0, 1, '')
if not own then return blocked end
if span == 0 and blocked == 0 then return now end
local done
local ends = span > 0 and min(now + span, EXACT) or 0
local text = format('%.0f', ends)
if place == 'field' then
  done = ends > 0 and try('HSET', key, 'blocked_until', text) or try('HDEL', key, 'blocked_until')
elseif place == 'member' then
  done = ends > 0 and try('ZADD', key, text, 'block') or try('ZREM', key, 'block')
end
if type(done) == 'table' then return done.err end
return charge(key, 1, 1, 0, 1, ends, true, a, b, c) or now
