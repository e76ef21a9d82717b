--[[
  refund: returns units, never below untouched. The stamp of the take that charged
  them limits the refund to units that still count. Without the stamp, late
  refunds would admit more than the definition permits.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; units; stamp (us; '': now)
  Returns  now, or an error string
  Writes   the state of the algorithm, and its expiry
]]
local afford, _, give_back = algorithm(1)
local key = KEYS[1]
return failure(function()
  local _, blocked, ahead, a, b, c, d, e = afford(key, 0, 1, '')
  give_back(key, tonumber(ARGV[5]), tonumber(ARGV[6]), blocked, ahead, a, b, c, d, e)
end) or now
