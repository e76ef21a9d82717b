--[[
  take: for each key, how many of n asks its limit can admit; charges exactly
  those. All keys have one quota, so that it is read once. Each key sees what
  the ones before it wrote.

  KEYS     one per ask
  ARGV     quota: 4 numbers, see the algorithm;
           then n, cost, longest accepted delay (us, '' for any): per key, or
           once where they are the same for all, or not at all where each is one
           ask for one unit, whatever the delay
  Returns  {now, row, row, ...}, flat; a row is k, state before (settled to now;
           as many numbers as the algorithm has), or in their place one string
           that says why this key failed, and it alone. Where the key has a
           block, be it over, the state's first number x stands as -1 - x,
           and blocked_until after it
  Writes   see the algorithm
]]
local afford, writers = algorithm(1)
local reply, done = { now }, 0

-- The rows of the keys that have none yet.
local function go_on()
  local keys, rows, size = KEYS, reply, #reply
  local n, cost, max_delay, at_once, arg = 1, 1, '', 1, 5
  local is_said, alike, charge = #ARGV > 6, #ARGV < 4 + 3 * #keys, nil
  for i = done + 1, #keys do
    done = i
    if is_said then
      if not alike then arg = 2 + 3 * i end
      -- The sums are numbers, without the call of a function for each.
      n, cost, max_delay = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2]
      at_once = n * cost > 0 and n * cost or nil
      is_said = not alike
    end
    local key = keys[i]
    local own, blocked, ahead, a, b, c, d, e = afford(key, n, cost, max_delay, at_once)
    if blocked then
      charge = charge or writers()
      c = charge(key, n, own, own, cost, blocked, ahead, a, b, c, d, e) or c
    end
    size = size + 1
    rows[size] = own
    if blocked and blocked > 0 then
      size = size + 1
      rows[size], a = -1 - a, blocked
    end
    size = size + 1
    rows[size] = a
    if b then
      size = size + 1
      rows[size] = b
      if c then
        size = size + 1
        rows[size] = c
      end
    end
  end
end

while done < #KEYS do
  local failed = failure(go_on)
  reply[#reply + 1] = failed
end
return reply
