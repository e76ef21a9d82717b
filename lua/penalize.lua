--[[
  penalize: charges units without asking. The debt is stored, so that what comes
  after has to wait for it.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; units
  Returns  the stamp by which the units are given back, or a string that says why
           it failed
  Writes   as a charge of the algorithm
]]
local afford, charge = algorithm(1)
local key = KEYS[1]
local _, charged
return failure(function()
  local _, blocked, ahead, a, b, c, d, e = afford(key, 0, 1, '')
  _, charged = charge(key, 1, 1, 1, tonumber(ARGV[5]), blocked, ahead, a, b, c, d, e)
end) or charged or now
