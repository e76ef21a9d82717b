--[[
  charge_used: charges units that were used, whatever the state: beyond the limit,
  and while the key is blocked. The charge is cut off where `most` units are used,
  so that debt is capped.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; units; most
  Returns  {now, units charged, blocked_until, state before the charge: 3 numbers,
           of which a sliding log computes the third after it, for a cost of 1};
           or an error string
  Writes   as a charge of the algorithm; without room, as a denial
]]
local afford, charge, _, room = algorithm(1)
local key = KEYS[1]
local reply
return failure(function()
  local _, blocked, ahead, a, b, c, d, e = afford(key, 0, 1, '')
  local units = math.min(ARGV[5] + 0, room(ARGV[6] + 0, a, b))
  local third = charge(key, 1, 1, units, 1, blocked, ahead, a, b, c, d, e)
  reply = { now, units, blocked, a, b or 0, third or 0 }
end) or reply
