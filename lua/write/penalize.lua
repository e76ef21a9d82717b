--[[
  penalize: charges units without a check. The debt is stored, so later checks
  wait until it is paid.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; units
  Returns  now; or {now, stamp} if a refund of these units needs another stamp
           than now; or an error string
  Writes   as a charge of the algorithm
]]
local afford, charge = algorithm(1)
local key = KEYS[1]
local _, charged
return failure(function()
  local _, blocked, ahead, a, b, c, d, e = afford(key, 0, 1, '')
  _, charged = charge(key, 1, 1, 1, tonumber(ARGV[5]), blocked, ahead, a, b, c, d, e)
end) or charged and { now, charged } or now
