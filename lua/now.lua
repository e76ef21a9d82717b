--[[
  now: begins every script that needs the time. It reads the server's clock once:
  on Redis 7.0, TIME advances during a script, so a second reading would differ.

  Defines  `now`, whole microseconds since 1970; `stamp`, the same as text with all
           its digits (tostring keeps 14 of 16). In a 32-bit build of Redis,
           prelude replaces `stamp`
]]
local call, format = redis.call, string.format
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = format('%d', now)
