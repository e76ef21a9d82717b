--[[
  show: describes a key in one line of words, for operators:

      redis-cli --eval lua/show.lua tidegate:2:login:token_bucket:user:42

  A fixed window, a sliding log and a sliding counter do not store their limit, so
  the line reports only their used units.

  KEYS     one
  ARGV     none
  Returns  one line
  Writes   nothing; the Redis user needs EVAL and the read commands below
]]
local call, try, format, match = redis.call, redis.pcall, string.format, string.match
local key = KEYS[1]
local LAYOUT, SHARED_LAYOUT = '2', '1'
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- Formats a number with at most three decimals: `3`, `2.5`.
local function number(value)
  local text = format('%.3f', value)
  return (string.gsub(string.gsub(text, '0+$', ''), '%.$', ''))
end

-- Formats a duration in its two largest units, rounded up: `36s`, `2h 5m`.
local function span(us)
  if us < 1000000 then return format('%dms', math.ceil(us / 1000)) end
  local seconds = math.ceil(us / 1000000)
  if seconds < 60 then return seconds .. 's' end
  if seconds < 3600 then return format('%dm %ds', seconds / 60, seconds % 60) end
  if seconds < 86400 then return format('%dh %dm', seconds / 3600, seconds % 3600 / 60) end
  return format('%dd %dh', seconds / 86400, seconds % 86400 / 3600)
end

-- Replaces characters that could control a terminal.
local function printable(text)
  return (string.gsub(string.sub(text, 1, 60), '[^%w%p ]', '?'))
end

local function corrupt(reason)
  if string.find(reason, 'WRONGTYPE', 1, true) then reason = 'a value of another type' end
  return 'corrupt: ' .. reason .. '; tidegate did not write this: find the other writer, then delete the key'
end

-- Returns the state's text without its block, and the end of the block (us).
local function split(text)
  local state, blocked = match(text, '^(.*) blocked until (%d+)$')
  return state or text, tonumber(blocked or 0)
end

local function level(text, labels)
  local state, blocked = split(text)
  local ticks, per, capacity, rate, at = match(state, '^(%d+)/(%d+) of (%d+), (%d+)/us at (%d+)$')
  if not ticks or per + 0 == 0 or rate + 0 == 0 then return end
  ticks = math.max(0, ticks - math.max(0, now - at) * rate)
  local used, left = ticks / per, math.max(0, math.floor((capacity * per - ticks) / per))
  local words = number(used) .. ' of ' .. capacity .. ' ' .. labels[1] .. ', ' .. left .. ' ' .. labels[2]
  if ticks > 0 then words = words .. ', ' .. labels[3] .. ' in ' .. span(math.ceil(ticks / rate)) end
  return words, blocked
end

local function fixed(text)
  local state, blocked = split(text)
  local used, ends = match(state, '^(%d+)$'), nil
  if used then
    ends = call('PEXPIRETIME', key) * 1000
    if ends < 0 then return used .. ' used, without an expiry: the next check sets one', blocked end
  else
    used, ends = match(state, '^(%d+) until (%d+)$')
    if not used or blocked == 0 then return end
    ends = ends + 0
  end
  if used + 0 == 0 or ends <= now then return 'untouched', blocked end
  return used .. ' used, the window ends in ' .. span(ends - now), blocked
end

local function counter(text, window)
  local state, blocked = split(text)
  local cur, prev, start = match(state, '^(%d+)%+(%d+) since (%d+)$')
  if not cur then return end
  local begins = now - now % window
  if start + window < begins then
    cur, prev = 0, 0
  elseif start + 0 < begins then
    cur, prev = 0, cur
  end
  local used = cur + math.floor(prev * (begins + window - now) / window)
  if cur + prev == 0 then return 'untouched', blocked end
  return format('%s in this window and %s in the previous one, counted as %s', cur, prev, number(used)), blocked
end

local function log(window)
  local newest, blocked = call('ZREVRANGE', key, '0', '1', 'WITHSCORES'), 0
  if newest[1] == 'block' then
    blocked = tonumber(newest[2])
    newest = { newest[3], newest[4] }
  end
  if not newest[1] then return 'untouched', blocked end
  local total, at = match(newest[1], '^(%d+):%d+$'), tonumber(newest[2])
  if not (total and at) then return end
  if at + window <= now then return 'untouched', blocked end
  local inside = format('(%.0f', now - window)
  local first = call('ZRANGEBYSCORE', key, inside, '+inf', 'LIMIT', '0', '1')[1]
  local base, units = match(first or '', '^(%d+):(%d+)$')
  if not base then return end
  return number(total - base + units) .. ' used, untouched in ' .. span(at + window - now), blocked
end

-- After `sure until`, units of lapsed holders may still be in the count.
local function in_flight(text)
  local state, blocked = split(text)
  local held, limit, sure = match(state, '^(%d+)/(%d+) at %d+ sure until (%d+)$')
  if not held then return end
  local fields, holders = call('HGETALL', key), 0
  for i = 1, #fields, 2 do
    -- Earlier versions kept a queue.
    if fields[i] ~= 'held' and fields[i] ~= 'queue' then holders = holders + 1 end
  end
  local words = (sure + 0 <= now and 'at most ' or '') .. held .. ' of ' .. limit .. ' held by '
  words = words .. holders .. (holders == 1 and ' holder, ' or ' holders, ')
  return words .. number(math.max(0, limit - held)) .. ' left', blocked
end

local BUCKETS = {
  token_bucket = { 'used', 'left', 'full again' },
  leaky_bucket = { 'queued', 'free', 'empty' },
}
local UNITS = { s = 1000000, ms = 1000, us = 1 }

-- `window`: `60s`, or a calendar such as `month@Europe/Berlin`.
local function title_of(algorithm, window, clock)
  local title = string.gsub(algorithm, '_', ' ')
  if window then title = title .. ' of ' .. window end
  return clock and title .. ' by the clock' or title
end

local function state(algorithm, window, clock)
  local length, unit = match(window or '', '^(%d+)(%a+)$')
  local window_us = length and UNITS[unit] and length * UNITS[unit]
  local found, title = nil, title_of(algorithm, window, clock)
  if algorithm == 'sliding_log' then
    found = try('ZCARD', key)
  elseif algorithm == 'fixed_window' then
    found = try('GET', key)
  elseif algorithm == 'in_flight' then
    found = try('HGET', key, 'held')
  else
    found = try('HGET', key, 'used')
  end
  if type(found) == 'table' then return corrupt(printable(found.err)) end
  if not found or found == 0 then
    -- Redis removes empty keys, so an existing key is a hash without the field.
    if call('PTTL', key) ~= -2 then return corrupt('no field `' .. (algorithm == 'in_flight' and 'held' or 'used') .. '`') end
    return title .. ': no such key, untouched'
  end
  local words, blocked
  if BUCKETS[algorithm] then
    words, blocked = level(found, BUCKETS[algorithm])
  elseif algorithm == 'fixed_window' then
    words, blocked = fixed(found)
  elseif algorithm == 'sliding_counter' then
    words, blocked = counter(found, window_us)
  elseif algorithm == 'in_flight' then
    words, blocked = in_flight(found)
  else
    words, blocked = log(window_us)
  end
  if not words then
    return corrupt(type(found) == 'string' and '"' .. printable(found) .. '"' or 'members')
  end
  if blocked > now then words = words .. ', all checks denied for ' .. span(blocked - now) end
  return title .. ': ' .. words
end

-- The holds of a key, see holds.lua. Counts at most 1,000 of them.
local function holds(title)
  local members = try('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', '0', '1000')
  if members.err then return corrupt(printable(members.err)) end
  local open, units, late, ended, first = 0, 0, 0, 0, nil
  for i = 1, #members, 2 do
    local held, what = match(members[i], ':(%d+):%d+:(%l+)$')
    local ends = tonumber(members[i + 1])
    if not (what == 'keep' or what == 'back' or what == 'late') then
      return corrupt('"' .. printable(members[i]) .. '"')
    elseif ends <= now then
      ended = ended + 1
    elseif what == 'late' then
      late = late + 1
    else
      open, units, first = open + 1, units + held, first or ends
    end
  end
  local words = open == 0 and 'none open' or format('%d open, %s units, the first ends in ', open, number(units))
  if first then words = words .. span(first - now) end
  if late > 0 then words = words .. format(', %d can be committed late', late) end
  if ended > 0 then words = words .. format(', %d ended, which the next call removes', ended) end
  if #members == 2000 then words = words .. ', of the first 1000' end
  return 'holds of ' .. title .. ': ' .. words
end

-- The adaptive limit of a key, see adapt.lua.
local function adaptive(title)
  local text = try('HGET', key, 'limit')
  if type(text) == 'table' then return corrupt(printable(text.err)) end
  if not text then return 'adaptive limit of ' .. title .. ': none' end
  if not match(text, '^%d+%.?%d*$') then return corrupt('"' .. printable(text) .. '"') end
  return format('adaptive limit of %s: %d', title, math.floor(text))
end

-- The figures of the fleet or the records of instances, see publish.lua, of the time
-- that began at a second.
local function published(name, start)
  local count = try('HGET', key, '(count)')
  if type(count) == 'table' then return corrupt(printable(count.err)) end
  if not count then return name .. ': none of this time' end
  if not match(count, '^%d+$') then return corrupt('"' .. printable(count) .. '"') end
  local words, ago = name == 'figures' and 'gates' or 'records', span(math.max(0, now - start * 1000000))
  return format('%s: %s %s of the time that began %s ago', name, count, words, ago)
end

-- The denials of a key that are counted for a ban, see ban.lua.
local function denials(title)
  local text = try('GET', key)
  if type(text) == 'table' then return corrupt(printable(text.err)) end
  if not text then return 'denials of ' .. title .. ': none' end
  if not match(text, '^[1-9]%d*$') then return corrupt('"' .. printable(text) .. '"') end
  local left = call('PTTL', key)
  local words = left < 0 and 'without an expiry: the next denial sets one' or 'counted for another ' .. span(left * 1000)
  return 'denials of ' .. title .. ': ' .. text .. ', ' .. words
end

local function shared(name)
  if name == 'instances' then
    local newest = try('ZREVRANGE', key, '0', '0', 'WITHSCORES')
    if newest.err then return corrupt(printable(newest.err)) end
    if not newest[1] then return 'instances: none' end
    return format('instances: %d, the last heartbeat %s ago', call('ZCARD', key), span(math.max(0, now - newest[2])))
  end
  if name == 'holders' then
    local live = try('ZCOUNT', key, format('(%.0f', now), '+inf')
    if type(live) == 'table' then return corrupt(printable(live.err)) end
    return format('holders of in-flight limits: %d live, %d lapsed', live, call('ZCARD', key) - live)
  end
  local found = try('HGETALL', key)
  if found.err then return corrupt(printable(found.err)) end
  local overrides, ago = 0, nil
  for i = 1, #found, 2 do
    if found[i] ~= 'changed' then
      local ends = match(found[i + 1], ' until (%d+)$')
      if not ends or ends + 0 > now then overrides = overrides + 1 end
    elseif tonumber(found[i + 1]) then
      ago = span(math.max(0, now - found[i + 1]))
    end
  end
  return format('overrides: %d active', overrides) .. (ago and ', changed ' .. ago .. ' ago' or '')
end

local function describe()
  local layout, rest = match(key, '^[%w_.-]+:(%d+):(.+)$')
  if not rest then return 'not a key of tidegate' end
  local name = match(rest, '^{%w+}:(.+)$') or rest
  if layout == SHARED_LAYOUT then
    if name == 'instances' or name == 'overrides' or name == 'holders' then return shared(name) end
    if name == 'audit' then return "audit log of operators' changes" end
    local of_fleet, start = match(name, '^(%a+)/(%d+)$')
    if of_fleet == 'figures' or of_fleet == 'instances' then return published(of_fleet, start) end
  end
  local shape = match(rest, '^[%w_.-]+:([%w_/@+-]+):')
  if not shape then return 'not a key of tidegate' end
  if layout ~= LAYOUT then return 'state of layout ' .. layout .. ', which another version of tidegate wrote' end
  if shape == 'adaptive/in_flight' then return adaptive('in flight') end
  local of_holds, of_denials = match(shape, '^holds/(.+)$'), match(shape, '^denials/(.+)$')
  shape = of_holds or of_denials or shape
  local algorithm = match(shape, '^[%a_]+')
  local window, clock = match(shape, '/(%d+%a+)'), match(shape, '@clock') ~= nil
  -- The windows of a calendar: of a fixed window only.
  window = window or match(shape, '^fixed_window/(%l+%+?[%d-]*@.+)$')
  local has_window = algorithm == 'fixed_window' or algorithm == 'sliding_log' or algorithm == 'sliding_counter'
  if not (BUCKETS[algorithm] or has_window or algorithm == 'in_flight') or has_window ~= (window ~= nil) then return 'not a key of tidegate' end
  if (of_holds or of_denials) and algorithm == 'in_flight' then return 'not a key of tidegate' end
  if of_holds then return holds(title_of(algorithm, window, clock)) end
  if of_denials then return denials(title_of(algorithm, window, clock)) end
  return state(algorithm, window, clock)
end

local reply = { ok = describe() }
return reply
