--[[
  bound: refuses a call that arrives after everyone has given it up, before it reads
  or writes a key. It follows `now` in the scripts that admit checks and acquires.

  KEYS     those of the script
  ARGV     those of the script; then the server's time (us) at which the last of its
           callers gives up, '' if the client does not know the server's time
  Returns  'LATE ' and now, if that time has come
  Writes   nothing
]]
local bound = table.remove(ARGV)
if bound ~= '' and now >= bound + 0 then return 'LATE ' .. format('%.0f', now) end
