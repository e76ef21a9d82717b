--[[
  permit_lease: opens, renews or ends the lease of a holder of in-flight limits. A
  lease covers all units that the holder has, of any number of keys.

  KEYS     zset: score us of the end of the lease, member the name of a holder, which
           ends in `/` and its ttl (ms), such as `web-1.3f2a/10000`
  ARGV     open, renew or end; name
  Returns  {now, end}, or an error string. `LAPSED lease`: the lease has ended, or is
           unknown to renew. Opening a live lease renews it
  Writes   ZADD, ZREM of ended leases, PEXPIREAT: the key expires an hour after the
           last call. After a step back of the clock also ZADD of leases that
           end too late, at most 1,000
]]
local KEPT = 3600000000
local MAX_SHORTENED = '1000'
local key, action, name = KEYS[1], ARGV[1], ARGV[2]

local function latest_end(holder)
  local ttl = integer(string.match(holder, '^[^ ;]+/(%d+)$'))
  if ttl and ttl >= 1 and ttl <= 60000 then return now + ttl * 1000 end
end

local function run()
  local new_end = latest_end(name)
  if not new_end then error('STATE name', 0) end
  if action == 'end' then return call('ZREM', key, name) end
  local old_end = call('ZSCORE', key, name)
  local is_live = old_end and old_end + 0 > now
  if is_live or (action == 'open' and not old_end) then call('ZADD', key, format(WHOLE, new_end), name) end
  -- A step back of the clock must not revive a lease that ended.
  call('ZREMRANGEBYSCORE', key, '-inf', stamp)
  local late = call('ZRANGEBYSCORE', key, '(' .. format(WHOLE, new_end), '+inf', 'WITHSCORES', 'LIMIT', '0', MAX_SHORTENED)
  for i = 1, #late, 2 do
    local latest = latest_end(late[i]) or now
    if late[i + 1] + 0 > latest then call('ZADD', key, format(WHOLE, latest), late[i]) end
  end
  expire(key, now + KEPT, 0)
  if not is_live and (old_end or action ~= 'open') then error('LAPSED lease', 0) end
  return new_end
end

local ends
local failed = failure(function() ends = run() end)
return failed or { now, action == 'end' and now or ends }
