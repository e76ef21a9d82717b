--[[
  take: for each key, how many of n asks its limit can admit; charges exactly
  those. All keys have one quota, so that it is read once. Each key sees what
  the ones before it wrote.

  KEYS     one per ask
  ARGV     quota: 4 numbers, see the algorithm;
           then per key: n, cost, longest accepted delay (us, '' for any)
  Returns  {now, row, row, ...}, flat; a row is k, blocked_until, state before
           (settled to now; as many numbers as the algorithm has), or in their
           place one string that says why this key failed, and it alone
  Writes   see the algorithm
]]
local afford, charge = algorithm(1)
local reply, size = { now }, 1
local arg = 5
for i = 1, #KEYS do
  -- The sum is a number, without the call of a function for each.
  local key, n, cost = KEYS[i], ARGV[arg] + 0, ARGV[arg + 1] + 0
  local own, blocked, ahead, a, b, c, d, e = afford(key, n, cost, ARGV[arg + 2])
  arg = arg + 3
  local failed, seen
  if own then
    failed, seen = charge(key, n, own, own, cost, blocked, ahead, a, b, c, d, e)
  else
    failed = blocked
  end
  if failed then
    size = size + 1
    reply[size] = failed
  else
    reply[size + 1], reply[size + 2], reply[size + 3] = own, blocked, a
    size = size + 3
    if b then
      size = size + 1
      reply[size] = b
    end
    if c then
      size = size + 1
      reply[size] = seen or c
    end
  end
end
return reply
