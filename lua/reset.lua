--[[
  reset: as if the keys had never been asked for; blocks are lifted with it.

  KEYS     any number
  ARGV     ignored
  Returns  how many there were
  Writes   UNLINK, which frees a long log outside of Redis's main thread
]]
local gone = 0
for i = 1, #KEYS do gone = gone + redis.call('UNLINK', KEYS[i]) end
return gone
