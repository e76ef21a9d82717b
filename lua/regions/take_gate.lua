--[[
  take_gate: checks of one replicated gate while no peer is cut off; many keys in one
  call. Decides as lua/take/take.lua does, then sends the charges to the other regions.

  KEYS     one per row of the reply; then outbox, counts
  ARGV     as take; then the number of numbers in a state; then the quota as one text,
           see `mode` of outbox
  Returns  as take. A state of windows that the slow path found is followed by one
           string: the start of the current window (us), its debt and the units of
           the next one. Without it, the window is that of `now`, and both are 0
  Writes   see the algorithm; HINCRBY of the outbox for each admitted key. Without
           memory, the first write to a state fails, and nothing has changed: Redis
           does not stop a script after its first write

  Before this file are `take(mode, counts)`, a function with the text of
  lua/take/take.lua, and `name`: the window of a row that names none, which the fast
  path sets, or 0 of levels and logs.
]]
local mode, numbers = table.remove(ARGV), table.remove(ARGV) + 0
local counts, outbox = table.remove(KEYS), table.remove(KEYS)
local reply = take(mode, counts)

local call, keys, argv, type = call, KEYS, ARGV, type
local at, field, is_named = 2, 'charge ' .. mode .. ' ', name ~= '0'
local same = field .. name .. ' '
local n, cost, arg = 1, 1, 5
local is_given, is_shared = #argv > 6, #argv < 4 + 3 * #keys
local sent, text = 1, '1'
for i = 1, #keys do
  if is_given then
    if not is_shared then arg = 2 + 3 * i end
    n, cost = argv[arg] + 0, argv[arg + 1] + 0
  end
  local k, prefix, first = n, same, reply[at]
  if type(first) == 'string' then
    k, at = 0, at + 1
  else
    if first < 0 then
      k, at = -1 - first, at + 1
      if reply[at] < 0 then at = at + 1 end
    end
    at = at + numbers
    if is_named and type(reply[at]) == 'string' then
      local start = string.match(reply[at], '^(%d+) ')
      if start then
        prefix, at = field .. start .. ' ', at + 1
      end
    end
  end
  local units = k * cost
  if units > 0 then
    if units ~= sent then
      sent, text = units, format('%.0f', units)
    end
    call('HINCRBY', outbox, prefix .. keys[i], text)
  end
end
return reply
