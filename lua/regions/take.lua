--[[
  take: checks of replicated gates, all or nothing; many groups in one call. A group
  admits as many of its n checks as each of its items allows, charges exactly those
  to all of them, and sends the charges to the other regions. Each group observes
  the writes of the groups before it. A gate that is not replicated runs
  lua/take/take.lua or lua/take/group.lua.

  KEYS     outbox, counts; then one per item, group after group
  ARGV     quotas (see outbox); then per group: n, number of items, and per item:
           quota (from 1), cost, longest accepted delay (us, '' for any)
  Returns  {now, group, group, ...}, flat. A group is k, the number of admitted
           checks, then per item: blocked_until; the state before the take, 1 to 3
           numbers; of windows also the start of the current one (us), its debt and
           the units of the next one. A group that failed is one string: the number
           of the item that failed (from 1), and the error. The other groups are
           processed
  Writes   HINCRBY of the outbox, then see the algorithms. Without memory, the first
           write fails, and nothing has changed. A group reads all its items before
           it writes one
]]
local quotas, arg = quotas_at(1)
local reply, key = { now }, 2

-- The item in progress: the error of a group names it.
local item
local function take(first, n, items)
  local k, found = n, {}
  for i = 1, items do
    item = i
    local quota, cost = quotas[ARGV[arg] + 0], ARGV[arg + 1] + 0
    found[i] = { quota, cost, quota.afford(KEYS[first + i], n, cost, ARGV[arg + 2]) }
    k, arg = math.min(k, found[i][3]), arg + 3
  end
  for i = 1, items do
    item = i
    local quota, cost, _, _, _, _, _, _, d = unpack(found[i], 1, 10)
    send(quota, quota.apply and d.start or 0, KEYS[first + i], k * cost)
  end
  local row = { k }
  for i = 1, items do
    item = i
    local quota, cost, own, blocked, ahead, a, b, c, d, e = unpack(found[i], 1, 10)
    c = quota.charge(KEYS[first + i], n, own, k, cost, blocked, ahead, a, b, c, d, e)
    for _, number in ipairs({ blocked, a, b, c }) do row[#row + 1] = number end
    if quota.apply then
      for _, number in ipairs({ d.start, d.debt, d.next }) do row[#row + 1] = number end
    end
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
