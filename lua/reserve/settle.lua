--[[
  settle: commits holds, each by its id; a cancel commits 0 units. First ends the
  holds whose end has come. A hold is settled at most once, so a repeated call
  changes nothing. Each item fails alone, and can then be settled again.

  KEYS     per item: its state, its holds
  ARGV     q, the number of quotas; then q times: algorithm, 4 numbers (see the
           algorithm); then per item: quota (from 1), id, units held, ttl (us),
           what (keep or back, see holds), actual units
  Returns  {now, row, row, ...}. A row is
             1, if the hold was open: it is removed. Units that were not used are
               refunded as charged at its time; additional ones are charged without
               a check.
             2, if it has ended (`late`): it is removed, and the actual units are
               charged without a check, less those that it kept
             0, if there is no such hold: nothing changes
           The row of an item that failed is one string: the error
  Writes   see the algorithms and holds
]]
local reply = { now }

local function settle(state, key)
  local quota, units, actual = quotas[ARGV[arg] + 0], ARGV[arg + 2] + 0, ARGV[arg + 5] + 0
  local name, what = ARGV[arg + 1] .. ':' .. ARGV[arg + 2] .. ':' .. ARGV[arg + 3] .. ':', ARGV[arg + 4]
  finish_ended(quota, state, key)
  local ends = live_until(quota, state, key, name .. what)
  if ends then
    replace(quota, state, key, name .. what, units - actual, ends - ARGV[arg + 3])
    return 1
  end
  if live_until(quota, state, key, name .. 'late') then
    local kept = what == 'keep' and units or 0
    replace(quota, state, key, name .. 'late', math.min(0, kept - actual))
    return 2
  end
  return 0
end

for i = 1, #KEYS / 2 do
  local row
  local failed = failure(function() row = settle(KEYS[2 * i - 1], KEYS[2 * i]) end)
  reply[i + 1] = failed or row
  arg = arg + 6
end
return reply
