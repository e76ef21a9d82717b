--[[
  token_bucket: a level of used units that may rise to the capacity and drains
  at the refill rate; an idle bucket is full, its level 0. Counted in ticks, so
  that every sum is an integer: a unit is `per` ticks, and `rate` ticks drain
  each microsecond. What is stored is what was used, so a raised capacity gives
  room at once.

  KEYS     hash: used, a text such as `150000/60000 at 1763680467812345`: ticks,
           `per` of the quota that wrote them, us; with ` blocked until us` after
           it where blocked. In one field, since three take Redis a fourth longer.
  ARGV     quota: capacity, rate, per, 0
  State    ticks used
  Writes   a charge: HSET, PEXPIREAT. A denial: nothing, but that a level dated
           in the future is re-dated to now (after a step back of the server's
           clock it would not drain), and a TTL that is too short lengthened.
]]

-- The most that is ever stored, so that debt cannot leave the exact range.
local MOST_TICKS = 562949953421312

local sub, match = string.sub, string.match

local function token_bucket(arg)
  local capacity, rate, per = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local full = capacity * per

  -- A level that this version of the quota wrote ends with this and the 16 digits
  -- of a time, and is cut up by its places: half as long as by a pattern.
  local between = '/' .. ARGV[arg + 2] .. ' at '
  local last_digit = -17 - #between
  local level = WHOLE .. between .. stamp

  -- The last level, its text and when it will be empty are kept, since idle
  -- buckets that are charged alike hold the same.
  local last_ticks, last_text, last_empty

  local function afford(key, n, cost)
    local text = try('HGET', key, 'used')
    local ticks, ahead, blocked = 0, false, 0
    if text then
      if text.err then return nil, text.err end
      local at
      if sub(text, last_digit + 1, -17) == between then
        ticks, at = tonumber(sub(text, 1, last_digit)), tonumber(sub(text, -16))
      else
        local digits, their_per, time, rest = match(text, '^(%d+)/(%d+) at (%d+)(.*)$')
        ticks, their_per, at = integer(digits), integer(their_per), integer(time)
        if rest ~= '' then blocked = rest and integer(match(rest, '^ blocked until (%d+)$')) end
        if not (ticks and blocked and their_per and their_per > 0) then return nil, 'STATE used' end
        if their_per ~= per then ticks = floor(min(ticks / their_per * per, EXACT) + 0.5) end
      end
      if not (ticks and ticks >= 0 and ticks <= EXACT and ticks % 1 == 0) then return nil, 'STATE used' end
      if not (at and at >= 0 and at <= EXACT and at % 1 == 0) then return nil, 'STATE used' end
      if ticks > MOST_TICKS then ticks = MOST_TICKS end
      if at > now then
        ahead = true
      else
        ticks = ticks - (now - at) * rate
        if ticks < 0 then ticks = 0 end
      end
    end
    local unit = cost * per
    if (blocked <= now and ticks + n * unit <= full) or cost == 0 then return n, blocked, ahead, ticks end
    if blocked > now then return 0, blocked, ahead, ticks end
    return max(0, floor((full - ticks) / unit)), blocked, ahead, ticks
  end

  local function charge(key, n, own, k, cost, blocked, ahead, ticks)
    if k * cost > 0 or (ahead and n * cost > 0) then
      ticks = ticks + k * cost * per
      if ticks > MOST_TICKS then ticks = MOST_TICKS end
      if ticks ~= last_ticks then
        last_ticks, last_text, last_empty = ticks, format(level, ticks), now + ceil(ticks / rate)
      end
      local text = last_text
      if blocked > now then text = text .. ' blocked until ' .. format(WHOLE, blocked) end
      local done = try('HSET', key, 'used', text)
      if done ~= 0 and type(done) == 'table' then return done.err end
      return expire(key, last_empty, blocked)
    elseif n * cost > 0 then
      local left = ceil(ticks / rate)
      local needed = max(left, blocked - now)
      -- Where Redis refuses it, the denial stands all the same.
      if needed > 0 and call('PTTL', key) * 1000 < needed then expire(key, now + left, blocked) end
    end
  end

  -- What was charged then has been draining since.
  local function give_back(key, units, stamp, blocked, _, ticks)
    local left = max(0, units * per - (now - stamp) * rate)
    return charge(key, 1, 1, 0, 1, blocked, true, max(0, ticks - left))
  end

  return afford, charge, give_back
end
