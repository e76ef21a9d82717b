--[[
  acquire_all: as group, for groups that need permits of in-flight limits too. Each
  group admits as many of its n checks as each of its limits allows, and charges
  exactly those to all of them. All messages have one sender. A message that was
  processed before repeats its reply. Then its group charges nothing, and only counts
  the units of its other messages: their keys were lost in between.

  KEYS     the leases of the holders (see permit_lease); then one per item, group
           after group
  ARGV     the sender's name; the end of its lease as it knew it (us);
           q, the number of quotas; then q times: algorithm, 4 numbers (see the
           algorithm); then per group: n, number of items, and per item: quota
           (from 1), cost; then the longest accepted delay (us, '' for any), or for
           in_flight the number of the message and the units to keep. A group keeps ''
           if an earlier group of the call has a message about the key: the units that
           this one has left. Such a call is not sent again, since its reply would not
           tell which groups it admitted the first time
  Returns  {now, group, group, ...}, flat. A group is -1 - k, then per item the
           state as in a row of take or acquire. A group that failed is one string:
           the number of the item that failed (from 1), and the error. The other
           groups are processed
  Writes   see the algorithms; a group reads all its items before it writes one

  The table `algorithms` before this file holds their functions by name.
]]
local reply, key, arg = { now }, 1, 4
local affords, charges, has_message = {}, {}, {}
for q = 1, ARGV[3] + 0 do
  has_message[q] = ARGV[arg] == 'in_flight'
  affords[q], charges[q] = algorithms[ARGV[arg]](arg + 1, KEYS[1], ARGV[1], ARGV[2])
  arg = arg + 5
end

-- The item in progress: the error of a group names it. The number of items before
-- `arg`.
local item, parsed
local function acquire(first, n, items)
  local k, repeated, found = n, nil, {}
  for i = 1, items do
    item, parsed = i, i
    local at, q, cost = arg, ARGV[arg] + 0, ARGV[arg + 1] + 0
    if has_message[q] then
      arg = at + 4
      found[i] = { q, cost, affords[q](KEYS[first + i], n, cost, at + 2) }
      if found[i][5] then repeated = math.min(repeated or n, found[i][3]) end
    else
      arg = at + 3
      found[i] = { q, cost, affords[q](KEYS[first + i], n, cost, ARGV[at + 2]) }
    end
    k = math.min(k, found[i][3])
  end
  k = repeated or k
  local row = { -1 - k }
  for i = 1, items do
    item = i
    local it, after = found[i], nil
    local blocked, a, b, c = it[4], it[6], it[7], it[8]
    if not repeated or has_message[it[1]] then
      after = charges[it[1]](KEYS[first + i], n, it[3], k, it[2], unpack(it, 4, 16))
    end
    row[#row + 1] = blocked > 0 and -1 - a or a
    if blocked > 0 then row[#row + 1] = blocked end
    if b then row[#row + 1] = b end
    if c then row[#row + 1] = after or c end
  end
  for i = 1, #row do reply[#reply + 1] = row[i] end
end

while key < #KEYS do
  local n, items = ARGV[arg] + 0, ARGV[arg + 1] + 0
  arg, parsed = arg + 2, 0
  local failed = failure(acquire, key, n, items)
  if failed then
    reply[#reply + 1] = item .. ' ' .. failed
    for _ = parsed + 1, items do arg = arg + (has_message[ARGV[arg] + 0] and 4 or 3) end
  end
  key = key + items
end
return reply
