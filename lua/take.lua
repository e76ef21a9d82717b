--[[
  take: for each key, how many of n asks its limit can admit; charges exactly
  those. All keys have one quota, so that it is read once. Each key sees what
  the ones before it wrote.

  KEYS     one per ask
  ARGV     quota: 4 numbers, see the algorithm;
           then n, cost, longest accepted delay (us, '' for any): per key, or
           once where they are the same for all
  Returns  {now, row, row, ...}, flat; a row is k, state before (settled to now;
           as many numbers as the algorithm has), or in their place one string
           that says why this key failed, and it alone. Where the key has a
           block, be it over, the state's first number x stands as -1 - x,
           and blocked_until after it
  Writes   see the algorithm
]]
local afford, charge = algorithm(1)
local reply, size = { now }, 1
local arg, alike = 5, #ARGV < 4 + 3 * #KEYS
local n, cost, max_delay
for i = 1, #KEYS do
  if i == 1 or not alike then
    -- The sums are numbers, without the call of a function for each.
    n, cost, max_delay = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2]
    arg = arg + 3
  end
  local key = KEYS[i]
  local own, blocked, ahead, a, b, c, d, e = afford(key, n, cost, max_delay)
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
    reply[size + 1], reply[size + 2] = own, a
    size = size + 2
    if blocked > 0 then
      reply[size], reply[size + 1] = -1 - a, blocked
      size = size + 1
    end
    if b then
      size = size + 1
      reply[size] = b
      if c then
        size = size + 1
        reply[size] = seen or c
      end
    end
  end
end
return reply
