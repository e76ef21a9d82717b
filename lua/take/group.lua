--[[
  group: checks against several limits, all or nothing; many groups in one call.
  A group admits as many of its n checks as each of its limits allows, and charges
  exactly those to all of them. Each group observes the writes of the groups before
  it.

  KEYS     one per item, group after group
  ARGV     q, the number of quotas; then q times: algorithm, 4 numbers (see the
           algorithm); then per group: n, number of items, and per item: quota
           (from 1), cost, longest accepted delay (us, '' for any)
  Returns  {now, group, group, ...}, flat. A group is -1 - k, then per item the
           state as in a row of take. A group that failed is one string: the
           number of the item that failed (from 1), and the error. The other
           groups are processed
  Writes   see the algorithms; a group reads all its items before it writes one

  The table `algorithms` before this file holds their functions by name.
]]
local reply, key, arg = { now }, 0, 2
local affords, charges = {}, {}
for q = 1, ARGV[1] + 0 do
  affords[q], charges[q] = algorithms[ARGV[arg]](arg + 1)
  arg = arg + 5
end

-- The item in progress: the error of a group names it.
local item
local function take(first, n, items)
  local k, found = n, {}
  for i = 1, items do
    item = i
    local q, cost = ARGV[arg] + 0, ARGV[arg + 1] + 0
    found[i] = { q, cost, affords[q](KEYS[first + i], n, cost, ARGV[arg + 2]) }
    k = math.min(k, found[i][3])
    arg = arg + 3
  end
  local row = { -1 - k }
  for i = 1, items do
    item = i
    local q, cost, own, blocked, ahead, a, b, c, d, e = unpack(found[i], 1, 10)
    local after = charges[q](KEYS[first + i], n, own, k, cost, blocked, ahead, a, b, c, d, e)
    row[#row + 1] = blocked > 0 and -1 - a or a
    if blocked > 0 then row[#row + 1] = blocked end
    if b then row[#row + 1] = b end
    if c then row[#row + 1] = after or c end
  end
  for i = 1, #row do reply[#reply + 1] = row[i] end
end

while key < #KEYS do
  local n, items = ARGV[arg] + 0, ARGV[arg + 1] + 0
  arg = arg + 2
  local next_arg = arg + 3 * items
  local failed = failure(take, key, n, items)
  if failed then reply[#reply + 1] = item .. ' ' .. failed end
  key, arg = key + items, next_arg
end
return reply
