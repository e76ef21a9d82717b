--[[
  take: for each key, how many of n asks its limit can admit; charges exactly
  those. All keys have one quota, so that it is read once. Each key sees what
  the ones before it wrote.

  KEYS     one per ask
  ARGV     quota: 4 numbers, see the algorithm;
           then n, cost, longest accepted delay (us, '' for any): per key, or
           once where they are the same for all, or not at all where each is one
           ask for one unit, whatever the delay
  Returns  {now, row, row, ...}, flat, and no number that the client can tell by
           itself. A row is the state before (settled to now;
           as many numbers as the algorithm has), or in its place one string
           that says why this key failed, and it alone. Where less than n are
           admitted, k stands before it as -1 - k. Where the key has a block,
           be it over, that does in any case, and the state's first number x
           stands as -1 - x and blocked_until after it
  Writes   see the algorithm
]]
local reply, take_in_full = { now }, nil
while done < #KEYS do
  local _, raised = pcall(usual, reply, call, format, now, stamp)
  if raised and string.find(raised, '^%u+ ') then
    -- Redis refused something, maybe after the charge: so it is not tried again.
    done = done + 1
    reply[#reply + 1] = raised
  elseif done < #KEYS then
    done = done + 1
    take_in_full = take_in_full or in_full(call, format, now, stamp)
    take_in_full(done, reply)
  end
end
return reply
