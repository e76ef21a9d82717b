--[[
  reset: makes keys untouched, and so lifts their blocks.

  KEYS     any number
  ARGV     ignored
  Returns  the number of keys that existed
  Writes   UNLINK, which frees a long log outside of Redis's main thread
]]
local removed = 0
for i = 1, #KEYS do removed = removed + redis.call('UNLINK', KEYS[i]) end
return removed
