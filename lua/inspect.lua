--[[
  inspect: what keys hold, for operators. Not asked on the way of any decision.

  KEYS     any number
  ARGV     per key 1 if it is a log, else 0
  Returns  {now, row, row, ...}, flat; a row is for how long the key is kept (ms;
           -1: for ever, -2: there is none), then the first 200 bytes of its
           text, or of a log how many members it has; or in their place one
           string that says why this key failed
  Writes   nothing
]]
local try = redis.pcall
local reply = { now }
for i = 1, #KEYS do
  local held
  if ARGV[i] == '1' then held = try('ZCARD', KEYS[i]) else held = try('HGET', KEYS[i], 'used') end
  if type(held) == 'table' then
    reply[#reply + 1] = held.err
  else
    reply[#reply + 1] = call('PTTL', KEYS[i])
    reply[#reply + 1] = type(held) == 'number' and format(WHOLE, held) or string.sub(held or '', 1, 200)
  end
end
return reply
