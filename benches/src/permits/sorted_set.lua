-- Permits as a typical script written by hand keeps them: a sorted set per key with one member per permit,
-- scored by its expiry.
--
-- KEYS: any number. ARGV: limit, ttl (us), members per key; then the members of each key. Returns how many
-- permits each key got.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, count = tonumber(ARGV[1]), tonumber(ARGV[3])
local expires, stamp = string.format('%.0f', now + ARGV[2]), string.format('%.0f', now)
local reply = {}
for i = 1, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', stamp)
  local free = limit - redis.call('ZCARD', KEYS[i])
  if free >= count then
    local added = {}
    for j = 1, count do
      added[2 * j - 1], added[2 * j] = expires, ARGV[3 + (i - 1) * count + j]
    end
    redis.call('ZADD', KEYS[i], unpack(added))
    redis.call('PEXPIRE', KEYS[i], math.ceil(ARGV[2] / 1000))
  end
  reply[i] = free >= count and count or 0
end
return reply
