--[[
  refund: gives units back, never below untouched. With the server's time of the
  take that charged them, only what of them still counts: without it late
  refunds would admit more than the definition permits.

  KEYS     one
  ARGV     quota: 4 numbers, see the algorithm; units; stamp (us, '' for now)
  Returns  now, or a string that says why it failed
  Writes   the state of the algorithm, and its expiry
]]
local afford, _, give_back = algorithm(1)
local key = KEYS[1]
return failure(function()
  local _, blocked, ahead, a, b, c = afford(key, 0, 1, '')
  local stamp = math.min(tonumber(ARGV[6]) or now, now)
  give_back(key, tonumber(ARGV[5]), stamp, blocked, ahead, a, b, c)
end) or now
