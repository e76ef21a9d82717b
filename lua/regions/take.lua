--[[
  take: checks of replicated gates, all or nothing; many groups in one call. A group
  admits as many of its n checks as each of its items allows, charges exactly those
  to all of them, and sends the charges to the other regions. Each group observes
  the writes of the groups before it. A gate that is not replicated runs
  lua/take/take.lua or lua/take/group.lua.

  KEYS     outbox, counts; then group after group one per item, and with a cut also
           the share of each item
  ARGV     the cut and the number of regions (see share); quotas (see outbox); then
           per group: n, number of items, and per item: quota (from 1), cost, longest
           accepted delay (us, '' for any)
  Returns  {now, group, group, ...}, flat. A group is k, the number of admitted
           checks, then per item: blocked_until; the state before the take, 1 to 3
           numbers; of windows also the start of the current one (us), its debt and
           the units of the next one; with a cut, then the same of each share. A
           group that failed is one string: the number of the item that failed (from
           1), and the error. The other groups are processed
  Writes   HINCRBY of the outbox, then see the algorithms. Without memory, the first
           write fails, and nothing has changed. A group reads all its items before
           it writes one
]]
local quotas, arg = quotas_at(3, quota_at)
local reply, key = { now }, 2
-- The states that must admit a check: that of each item, and with a cut its share.
local states = { quotas }
if cut then states[2] = quotas_at(3, share_at) end

-- The item in progress: the error of a group names it.
local item
local function take(first, n, items)
  local k, found = n, {}
  for s = 1, #states do
    for i = 1, items do
      item = i
      local at, place = arg + 3 * i - 1, #found + 1
      local quota, cost = states[s][ARGV[at] + 0], ARGV[at + 1] + 0
      found[place] = { quota, cost, quota.afford(KEYS[first + place], n, cost, ARGV[at + 2]) }
      k = math.min(k, found[place][3])
    end
  end
  for i = 1, items do
    item = i
    local quota, cost, _, _, _, _, _, _, d = unpack(found[i], 1, 10)
    send(quota, quota.apply and d.start or 0, KEYS[first + i], k * cost)
  end
  local row = { k }
  for i = 1, #found do
    item = (i - 1) % items + 1
    local quota, cost, own, blocked, ahead, a, b, c, d, e = unpack(found[i], 1, 10)
    c = quota.charge(KEYS[first + i], n, own, k, cost, blocked, ahead, a, b, c, d, e) or c
    for _, number in ipairs({ blocked, a, b, c }) do row[#row + 1] = number end
    if quota.apply then
      for _, number in ipairs({ d.start, d.debt, d.next }) do row[#row + 1] = number end
    end
  end
  for i = 1, #row do reply[#reply + 1] = row[i] end
end

while key < #KEYS do
  local n, items = ARGV[arg] + 0, ARGV[arg + 1] + 0
  local failed = failure(take, key, n, items)
  if failed then reply[#reply + 1] = item .. ' ' .. failed end
  key, arg = key + items * #states, arg + 2 + 3 * items
end
return reply
