--[[
  slow_acquire: decides a message about a key in any state, or peeks at it. A call
  creates it only if it meets a key that the fast path does not handle.

  Defines  the function that it returns, which handles the key of row i and appends
           that row. See acquire
]]
local afford, charge = in_flight(3, KEYS[1], ARGV[1], ARGV[2])
-- The arguments before n and cost.
local before_acquires = 2 * #KEYS + 1
local is_given, is_shared = #ARGV > before_acquires, #ARGV == before_acquires + 2

local function finish(rows, key, n, cost, k, blocked, is_repeated, held, sure, ...)
  charge(key, n, k, k, cost, blocked, is_repeated, held, sure, ...)
  if k ~= n or blocked > 0 then rows[#rows + 1] = -1 - k end
  rows[#rows + 1] = blocked > 0 and -1 - held or held
  if blocked > 0 then rows[#rows + 1] = blocked end
  rows[#rows + 1] = sure
end

local function acquire(key, i, rows)
  local n, cost = 1, 1
  if is_given then
    local arg = before_acquires + (is_shared and 1 or 2 * i - 1)
    n, cost = ARGV[arg] + 0, ARGV[arg + 1] + 0
  end
  finish(rows, key, n, cost, afford(key, n, cost, 2 * i + 2))
end

return function(i, rows)
  local failed = failure(acquire, KEYS[i + 1], i, rows)
  if failed then rows[#rows + 1] = failed end
end
