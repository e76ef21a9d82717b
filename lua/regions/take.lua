--[[
  take: for each key, admits as many of n checks as the limit allows, charges exactly
  those, and sends them to the other regions. All keys share one quota. A gate that
  is not replicated runs lua/take/take.lua.

  KEYS     outbox, counts; then one per row of the reply
  ARGV     quota (see outbox); then per key: n, cost, longest accepted delay (us, ''
           for any)
  Returns  {now, row, row, ...}, flat. A row is k, the number of admitted checks;
           blocked_until; the state before the take, 3 numbers; then of windows the
           start of the current one (us), its debt and the units of the next one,
           else 3 zeros. The row of a key that failed is one string: the error. The
           other keys are processed
  Writes   HINCRBY of the outbox, then see the algorithm. Without memory, the first
           fails, and nothing has changed
]]
local reply, quota = { now }, quota_at(1)

local function take(key, arg)
  local n, cost = ARGV[arg] + 0, ARGV[arg + 1] + 0
  local own, blocked, ahead, a, b, c, d, e = quota.afford(key, n, cost, ARGV[arg + 2])
  local start, debt, next = 0, 0, 0
  if quota.apply then start, debt, next = d.start, d.debt, d.next end
  send(quota, start, key, own * cost)
  c = quota.charge(key, n, own, own, cost, blocked, ahead, a, b, c, d, e)
  for _, number in ipairs({ own, blocked, a, b or 0, c or 0, start, debt, next }) do
    reply[#reply + 1] = number
  end
end

for i = 3, #KEYS do
  local failed = failure(take, KEYS[i], 3 * i - 1)
  if failed then reply[#reply + 1] = failed end
end
return reply
