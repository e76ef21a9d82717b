--[[
  rights: lists the commands that the scripts call and that this user may not call
  on keys of this namespace. No decision calls it.

  KEYS     one of the namespace
  ARGV     none
  Returns  the names of those commands; none if the server cannot report them
           (before Redis 7.0)
  Writes   nothing
]]
local key, is_allowed, missing = KEYS[1], redis.acl_check_cmd, {}
if not is_allowed then return missing end
local function need(command, ...)
  if not is_allowed(command, ...) then missing[#missing + 1] = command end
end
need('DECRBY', key, '1')
need('GET', key)
need('HDEL', key, 'x')
need('HGET', key, 'x')
need('HGETALL', key)
need('HMGET', key, 'x')
need('HSET', key, 'x', '1')
need('INCRBY', key, '1')
need('PEXPIREAT', key, '1')
need('PEXPIRETIME', key)
need('PTTL', key)
need('SET', key, '1')
need('TIME')
need('UNLINK', key)
need('ZADD', key, '1', 'x')
need('ZCARD', key)
need('ZCOUNT', key, '0', '1')
need('ZMSCORE', key, 'x')
need('ZRANGE', key, '0', '1')
need('ZRANGEBYSCORE', key, '0', '1')
need('ZREM', key, 'x')
need('ZREMRANGEBYRANK', key, '0', '1')
need('ZREMRANGEBYSCORE', key, '0', '1')
need('ZREVRANGE', key, '0', '1')
need('ZSCORE', key, 'x')
return missing
