--[[
  inspect: reads the contents of keys, for operators. No decision calls it.

  KEYS     any number
  ARGV     per key what it holds: text (in the field `used`), log or count
  Returns  {now, row, row, ...}, flat; a row is the rest of the key's life (ms;
           -1: it never expires, -2: there is no key), then the first 200 bytes of
           its text, the number of members of a log, or a count with the end of
           its window as in the text of a blocked one; or instead of both one
           string, why this key failed
  Writes   nothing
]]
local try = redis.pcall
local reply = { now }
for i = 1, #KEYS do
  local found
  if ARGV[i] == 'log' then
    found = try('ZCARD', KEYS[i])
  elseif ARGV[i] == 'count' then
    found = try('GET', KEYS[i])
  else
    found = try('HGET', KEYS[i], 'used')
  end
  if type(found) == 'table' then
    reply[#reply + 1] = found.err
  else
    local text = type(found) == 'number' and format(WHOLE, found) or string.sub(found or '', 1, 200)
    if ARGV[i] == 'count' and string.find(text, '^%d+$') then
      local ends = call('PEXPIRETIME', KEYS[i])
      text = text .. ' until ' .. format(WHOLE, ends < 0 and EXACT or ends * 1000)
    end
    reply[#reply + 1] = call('PTTL', KEYS[i])
    reply[#reply + 1] = text
  end
end
return reply
