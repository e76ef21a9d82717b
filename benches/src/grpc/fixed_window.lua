-- A fixed window as services write it by hand: a counter that expires with its window.
-- KEYS: the counter; ARGV: the units, the window in seconds.
local used = redis.call('INCRBY', KEYS[1], ARGV[1])
local left = redis.call('TTL', KEYS[1])
if left < 0 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
return { used, left }
