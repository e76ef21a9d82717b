--[[
  slow_path: takes one key in any state. A call creates it only if it meets a key
  that the fast path does not handle.

  Defines  the function that it returns, which takes from KEYS[i] and appends the
           row of that key. See take
]]
local afford, charge = algorithm(1)
local is_given, is_shared = #ARGV > 6, #ARGV < 4 + 3 * #KEYS

local function take(key, i, rows)
  local n, cost, max_delay = 1, 1, ''
  if is_given then
    local arg = is_shared and 5 or 2 + 3 * i
    n, cost, max_delay = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2]
  end
  local own, blocked, ahead, a, b, c, d, e = afford(key, n, cost, max_delay)
  c = charge(key, n, own, own, cost, blocked, ahead, a, b, c, d, e) or c
  if own ~= n or blocked > 0 then rows[#rows + 1] = -1 - own end
  rows[#rows + 1] = blocked > 0 and -1 - a or a
  if blocked > 0 then rows[#rows + 1] = blocked end
  rows[#rows + 1] = b
  if b then rows[#rows + 1] = c end
end

return function(i, rows)
  local failed = failure(take, KEYS[i], i, rows)
  if failed then rows[#rows + 1] = failed end
end
