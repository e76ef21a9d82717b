--[[
  override: sets or removes an operator's override for the whole fleet. Also
  removes overrides that have ended.

  KEYS     hash: overrides by target, and the time of the last change
  ARGV     field; text ('' removes it); duration (us, '' for no end); maximum
           number of overrides
  Returns  now, or a string that says why it failed: FULL if the maximum number
           of overrides is reached
  Writes   HSET, HDEL, PEXPIREAT: the key lives as long as its overrides
]]
local try = redis.pcall
local key, field, text, max_overrides = KEYS[1], ARGV[1], ARGV[2], ARGV[4] + 0
-- Ten years, the longest duration.
local FOREVER = 315360000000000
local found = call('HGETALL', key)
local last_change, remaining, last_end = 0, 0, now
local ended, is_set = {}, text ~= ''
for i = 1, #found, 2 do
  local name = found[i]
  if name == 'changed' then
    last_change = tonumber(found[i + 1]) or 0
  elseif name ~= field then
    local ends = tonumber(string.match(found[i + 1], ' until (%d+)$') or now + FOREVER)
    if ends > now then
      remaining, last_end = remaining + 1, math.max(last_end, ends)
    else
      ended[#ended + 1] = name
    end
  end
end
if is_set then
  if remaining >= max_overrides then return 'FULL' end
  local ends = now + FOREVER
  if ARGV[3] ~= '' then
    ends = math.min(now + ARGV[3], ends)
    text = text .. ' until ' .. format(WHOLE, ends)
  end
  last_end = math.max(last_end, ends)
end
-- A process that read the overrides in this microsecond must read them again, so the
-- time of the last change always increases.
local changed = format(WHOLE, math.max(now, last_change + 1))
local done = is_set and try('HSET', key, 'changed', changed, field, text) or try('HSET', key, 'changed', changed)
if type(done) == 'table' then return done.err end
if not is_set then call('HDEL', key, field) end
for i = 1, #ended do
  call('HDEL', key, ended[i])
end
-- If no override is left, the key stays until every process has observed the change.
failure(expire, key, math.max(last_end, now + 60000000), 0)
return now
