--[[
  heartbeat: counts the processes that share the quotas, of which this is one.

  KEYS     zset: a process's name, by when it was last heard of (us)
  ARGV     name; who has not been heard of for so long does not count (ms)
  Returns  how many there are
  Writes   ZADD, ZREMRANGEBYSCORE, PEXPIREAT: the key lives as long as a name
]]
local key, name, lifetime = KEYS[1], ARGV[1], ARGV[2] * 1000
call('ZADD', key, stamp, name)
-- Also who is dated in the future, where the server's clock was stepped back.
call('ZREMRANGEBYSCORE', key, '-inf', format(WHOLE, now - lifetime))
call('ZREMRANGEBYSCORE', key, '(' .. format(WHOLE, now + lifetime), '+inf')
failure(expire, key, now + lifetime, 0)
return call('ZCARD', key)
