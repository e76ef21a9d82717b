--[[
  clock: what stands before every script. Reads the server's clock, once: TIME
  runs on inside a script on Redis 7.0, so a second reading would differ.

  Promises  `now` in whole microseconds since 1970, and `stamp`, the same as
            text with all its digits (tostring would keep 14 of 16), but where
            Redis was built for 32 bits: see prelude
]]
local call, format = redis.call, string.format
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = format('%d', now)
