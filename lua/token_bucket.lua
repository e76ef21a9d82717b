--[[
  token_bucket: a level of used units that may rise to the capacity and drains
  at the refill rate; an idle bucket is full, its level 0. Counted in ticks, so
  that every sum is an integer: a unit is `per` ticks, and `rate` ticks drain
  each microsecond. What is stored is what was used, so a raised capacity gives
  room at once.

  KEYS     hash: used, a text (see there) such as
           `150000/60000 of 10, 5/us at 1763680467812345`: ticks, and `per`,
           capacity and rate of the quota that wrote them; us
  ARGV     quota: capacity, rate, per, 0
  State    ticks used
  Writes   a charge: HSET, and PEXPIREAT where that changes: in steps of an
           eighth of the time to fill. A denial: nothing, but that a level dated
           in the future is re-dated to now (after a step back of the server's
           clock it would not drain), and a TTL that is too short lengthened.
]]

-- The most that is ever stored, so that debt cannot leave the exact range.
local MOST_TICKS = 562949953421312

local function token_bucket(arg)
  local capacity, rate, per = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local full = capacity * per
  -- Keys are kept until the end of such a step, so that most charges leave the
  -- expiry as it is.
  local step = floor(full / rate / 8) + 1

  -- A level that this version of the quota wrote ends with this and the 16 digits
  -- of a time, and is cut up by its places: half as long as by a pattern.
  local between = '/' .. ARGV[arg + 2] .. ' of ' .. ARGV[arg] .. ', ' .. ARGV[arg + 1] .. '/us at '
  local last_digit = -17 - #between
  local level = WHOLE .. between .. stamp

  -- The last level, its text and when it will be empty are kept, since idle
  -- buckets that are charged alike hold the same.
  local last_ticks, last_text, last_step

  -- The beginning of the step in which a level will be empty.
  local function step_of(ticks, at)
    local empty = at + (ticks + -ticks % rate) / rate
    return empty - empty % step
  end

  local function afford(key, n, cost)
    local text = try('HGET', key, 'used')
    local ticks, ahead, blocked, kept = 0, false, 0, nil
    if text then
      if text.err then return nil, text.err end
      local at
      local is_ours = sub(text, last_digit + 1, -17) == between
      if is_ours then
        ticks, at = tonumber(sub(text, 1, last_digit)), tonumber(sub(text, -16))
      else
        local digits, their_per, time, rest = match(text, '^(%d+)/(%d+) of %d+, %d+/us at (%d+)(.*)$')
        ticks, their_per, at = integer(digits), integer(their_per), integer(time)
        if rest ~= '' then blocked = rest and blocked_until(rest) end
        if not (ticks and blocked and their_per and their_per > 0) then return nil, 'STATE used' end
        if their_per ~= per then ticks = floor(min(ticks / their_per * per, EXACT) + 0.5) end
      end
      if not (ticks and ticks >= 0 and ticks <= EXACT and ticks % 1 == 0) then return nil, 'STATE used' end
      if not (at and at >= 0 and at <= EXACT and at % 1 == 0) then return nil, 'STATE used' end
      if ticks > MOST_TICKS then ticks = MOST_TICKS end
      if is_ours then kept = step_of(ticks, at) end
      if at > now then
        ahead = true
      else
        ticks = ticks - (now - at) * rate
        if ticks < 0 then ticks = 0 end
      end
    end
    local unit = cost * per
    if (blocked <= now and ticks + n * unit <= full) or cost == 0 then
      return n, blocked, ahead, ticks, nil, nil, kept
    end
    if blocked > now then return 0, blocked, ahead, ticks end
    return max(0, floor((full - ticks) / unit)), blocked, ahead, ticks, nil, nil, kept
  end

  local function charge(key, n, own, k, cost, blocked, ahead, ticks, _, _, kept)
    if k * cost > 0 or (ahead and n * cost > 0) then
      ticks = ticks + k * cost * per
      if ticks > MOST_TICKS then ticks = MOST_TICKS end
      if ticks ~= last_ticks then
        last_ticks, last_text, last_step = ticks, format(level, ticks), step_of(ticks, now)
      end
      local text = last_text
      if blocked > now then text = text .. format(BLOCKED, blocked) end
      local done = try('HSET', key, 'used', text)
      if done ~= 0 and type(done) == 'table' then return done.err end
      -- Whoever wrote what was there has set this expiry.
      if last_step == kept then return end
      return expire(key, last_step + step, blocked)
    elseif n * cost > 0 and not kept then
      local needed = max(now + ceil(ticks / rate), blocked)
      -- Where Redis refuses it, the denial stands all the same.
      if needed > now and now + call('PTTL', key) * 1000 < needed then
        expire(key, step_of(ticks, now) + step, blocked)
      end
    end
  end

  -- What was charged then has been draining since.
  local function give_back(key, units, stamp, blocked, _, ticks)
    local left = max(0, units * per - (now - stamp) * rate)
    return charge(key, 1, 1, 0, 1, blocked, true, max(0, ticks - left))
  end

  return afford, charge, give_back
end
