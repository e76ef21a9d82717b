--[[
  inspect: reads the contents of keys, for operators. No decision calls it.

  KEYS     any number
  ARGV     per key its kind: text (in the field `used`), holders (a text in the
           field `held`), log or count
  Returns  {now, row, row, ...}, flat. A row is the key's time to live (ms; -1: it
           never expires, -2: there is no key), then the first 200 bytes of its
           text, the number of members of a log, or a count with the end of its
           window in the form of a blocked key's text. A row of a key that failed
           is one string: the error
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
    found = try('HGET', KEYS[i], ARGV[i] == 'holders' and 'held' or 'used')
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
