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
local own, blocked, ahead, a, b, c = afford(key, 0, 1, '')
if not own then return blocked end
local stamp = min(tonumber(ARGV[6]) or now, now)
return give_back(key, tonumber(ARGV[5]), stamp, blocked, ahead, a, b, c) or now
