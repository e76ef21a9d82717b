--[[
  heartbeat: records that this process is alive, and counts the processes that
  share the quotas.

  KEYS     zset: score us of the last heartbeat, member the name of a process
  ARGV     name; lifetime (ms): a process whose last heartbeat is older is not
           counted
  Returns  the number of processes, including this one
  Writes   ZADD, ZREMRANGEBYSCORE, PEXPIREAT: the key expires one lifetime after
           the last heartbeat
]]
local key, name, lifetime = KEYS[1], ARGV[1], ARGV[2] * 1000
call('ZADD', key, stamp, name)
call('ZREMRANGEBYSCORE', key, '-inf', format(WHOLE, now - lifetime))
-- Also removes names that are dated more than a lifetime in the future: they remain
-- after the server's clock is stepped back.
call('ZREMRANGEBYSCORE', key, '(' .. format(WHOLE, now + lifetime), '+inf')
failure(expire, key, now + lifetime, 0)
return call('ZCARD', key)
