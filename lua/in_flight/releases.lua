--[[
  releases: the inbox of a process that holds permits for its clients. Other processes
  record in it the releases that they receive, and the process collects them.

  KEYS     zset: score us of the record, member the id of a permit. The member `open`,
           with the time of the last collect, is there while the process collects
  ARGV     record; id; maximum number of records. Or
           collect; the time of the last collect whose reply arrived (us, 0: none);
           maximum number of records; how long the inbox stays open (ms)
  Returns  record: 1; 0 if the inbox is not open; FULL if it has that many records
           collect: the members, then now
  Writes   record: ZADD. collect: ZREMRANGEBYSCORE of the records that the last collect
           has returned, so a lost reply loses none; ZADD, PEXPIREAT
]]
local key, max = KEYS[1], ARGV[3] + 0
if ARGV[1] == 'record' then
  if not call('ZSCORE', key, 'open') then return 0 end
  -- `open` is a member, but not a record.
  if call('ZCARD', key) > max and not call('ZSCORE', key, ARGV[2]) then return 'FULL' end
  call('ZADD', key, stamp, ARGV[2])
  return 1
end
local reply = call('ZRANGEBYSCORE', key, '-inf', '+inf', 'LIMIT', '0', format(WHOLE, max + 1))
reply[#reply + 1] = now
call('ZREMRANGEBYSCORE', key, '-inf', ARGV[2])
call('ZADD', key, stamp, 'open')
expire(key, now + ARGV[4] * 1000, 0)
return reply
