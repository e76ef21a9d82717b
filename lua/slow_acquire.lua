--[[
  slow_acquire: decides a message about a key in any state, or peeks at it. A call
  creates it only if it meets a key that the fast path does not handle.

  Defines  the function that it returns, which handles the key of row i and appends
           that row. See acquire
]]
local afford, charge = in_flight(3, KEYS[1], ARGV[1], ARGV[2])
-- The arguments before n, cost and wait.
local before_acquires = 2 * #KEYS + 2
local is_given, is_shared = #ARGV > before_acquires, #ARGV == before_acquires + 3

local function finish(rows, key, n, cost, k, blocked, is_repeated, held, sure, before, ...)
  charge(key, n, k, k, cost, blocked, is_repeated, held, sure, before, ...)
  if k ~= n or blocked > 0 then rows[#rows + 1] = -1 - k end
  rows[#rows + 1] = blocked > 0 and -1 - held or held
  if blocked > 0 then rows[#rows + 1] = blocked end
  rows[#rows + 1] = sure
  rows[#rows + 1] = before
end

local function acquire(key, i, rows)
  local n, cost, waits = 1, 1, false
  if is_given then
    local arg = before_acquires + (is_shared and 1 or 3 * i - 2)
    n, cost, waits = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2] == '1'
  end
  finish(rows, key, n, cost, afford(key, n, cost, 2 * i + 3, waits))
end

return function(i, rows)
  local failed = failure(acquire, KEYS[i + 1], i, rows)
  if failed then rows[#rows + 1] = failed end
end
