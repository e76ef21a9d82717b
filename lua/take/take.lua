--[[
  take: for each key, admits as many of n checks as the limit allows, and charges
  exactly those. All keys share one quota, so the script reads it once. Each key
  observes the writes of the keys before it.

  KEYS     one per row of the reply; a key may occur several times
  ARGV     quota: 4 numbers, see the algorithm;
           then n, cost, longest accepted delay (us, '' for any): per key; or once
           if they are equal for all keys; or not at all if each key has one check
           of cost 1 and accepts any delay
  Returns  {now, row, row, ...}, flat, without numbers that the client can derive.
           A row is
             -1 - k, if only k < n checks are admitted, or if the key has a
               block, even an expired one;
             the state before the take, settled to now: as many numbers as the
               algorithm has. If the key has a block, the first number x is sent
               as -1 - x, and blocked_until follows it.
           The row of a key that failed is one string: the error. The other keys
           are processed
  Writes   see the algorithm
]]
local reply, take_slow = { now }, nil
while done < #KEYS do
  local _, raised = pcall(fast_path, reply, call, format, now, stamp)
  if raised and string.find(raised, '^%u+ ') then
    -- Redis rejected a command, possibly after the charge, so this key is not retried.
    done = done + 1
    reply[#reply + 1] = raised
  elseif done < #KEYS then
    done = done + 1
    take_slow = take_slow or slow_path(call, format, now, stamp)
    take_slow(done, reply)
  end
end
return reply
