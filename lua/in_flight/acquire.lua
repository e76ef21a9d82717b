--[[
  acquire: processes messages of one holder about keys of in-flight limits: units
  that it keeps, and new acquires. Or peeks at keys. All keys share one quota, and
  each is decided separately. Each observes the writes of those before it.

  KEYS     the leases of the holders (see permit_lease); then one per row of the
           reply; a key may occur several times
  ARGV     the sender's name ('' peeks: n and keep are 0); the end of its lease as
           it knew it (us); the limit;
           then per key the number of the message and the units to keep;
           then n and cost: per key; or once if they are equal for all keys; or not
           at all if they are 1 and 1
  Returns  {now, row, row, ...}, flat, without numbers that the client can derive.
           A row is
             -1 - k, if only k < n acquires are admitted, or if the key has a
               block, even an expired one;
             the state of in_flight. If the key has a block, the first number x is
               sent as -1 - x, and blocked_until follows it.
           The row of a key that failed is one string: the error. The other keys
           are processed. `LAPSED lease`: the sender is not live. `STALE message`:
           a later message was processed. A repeated message gets the same k, and
           changes nothing
  Writes   see in_flight
]]
local reply, acquire_slow = { now }, nil
while done < #KEYS - 1 do
  local _, raised = pcall(fast_path, reply, call, format, now, stamp)
  if raised and string.find(raised, '^%u+ ') then
    -- Redis rejected a command, possibly after a write, so this key is not retried.
    done = done + 1
    reply[#reply + 1] = raised
  elseif done < #KEYS - 1 then
    done = done + 1
    acquire_slow = acquire_slow or slow_path(call, format, now, stamp)
    acquire_slow(done, reply)
  end
end
return reply
