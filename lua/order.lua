--[[
  order: sets what operators order for the whole fleet, or takes it back. Orders
  whose time is over are removed on the way.

  KEYS     hash: orders by what they are for, and when they were last changed
  ARGV     field; text ('' takes it back); for how long (us, '' until it is taken
           back); how many there can be
  Returns  now, or a string that says why it failed: FULL where there are as many
           as there can be
  Writes   HSET, HDEL, PEXPIREAT: the key lives as long as an order
]]
local try = redis.pcall
local key, field, text, most = KEYS[1], ARGV[1], ARGV[2], ARGV[4] + 0
-- Ten years: no order is meant to last longer.
local FOREVER = 315360000000000
local found = call('HGETALL', key)
local before, left, last_end = 0, 0, now
local over, adds = {}, text ~= ''
for i = 1, #found, 2 do
  local name = found[i]
  if name == 'changed' then
    before = tonumber(found[i + 1]) or 0
  elseif name ~= field then
    local ends = tonumber(string.match(found[i + 1], ' until (%d+)$') or now + FOREVER)
    if ends > now then
      left, last_end = left + 1, math.max(last_end, ends)
    else
      over[#over + 1] = name
    end
  end
end
if adds then
  if left >= most then return 'FULL' end
  local ends = now + FOREVER
  if ARGV[3] ~= '' then
    ends = math.min(now + ARGV[3], ends)
    text = text .. ' until ' .. format(WHOLE, ends)
  end
  last_end = math.max(last_end, ends)
end
-- Whoever has read them in this very microsecond reads them again.
local changed = format(WHOLE, math.max(now, before + 1))
local done = adds and try('HSET', key, 'changed', changed, field, text) or try('HSET', key, 'changed', changed)
if type(done) == 'table' then return done.err end
if not adds then call('HDEL', key, field) end
for i = 1, #over do
  call('HDEL', key, over[i])
end
-- When nothing is left, the change itself is to be seen by all.
failure(expire, key, math.max(last_end, now + 60000000), 0)
return now
