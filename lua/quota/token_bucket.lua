--[[
  token_bucket: a level of used units that may rise to the capacity and drains
  at the refill rate. An idle bucket has all its units, and a level of 0. Levels
  are counted in ticks, so that every sum is an integer: a unit is `per` ticks,
  and `rate` ticks drain per microsecond. The state is the used units, so a
  raised capacity gives room at once.

  KEYS     hash: used, a text (see hash_state) such as
           `150000/60000 of 10, 5/us at 1763680467812345`: ticks, and `per`,
           capacity and rate of the quota that wrote them; us
  ARGV     quota: capacity, rate, per, 0
  State    ticks used
  Writes   a charge: HSET, and PEXPIREAT if the expiry changes, in steps of an
           eighth of the fill time. A denial: nothing, except that a level dated
           in the future is re-dated to now (after a step back of the server's
           clock it would not drain), and a TTL that is too short is extended.
]]

-- The maximum level, so that debt stays in the exact range.
local MAX_TICKS = 562949953421312

local function token_bucket(arg)
  local capacity, rate, per = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2] + 0
  local full = capacity * per
  -- Keys expire at the end of a step, so most charges do not change the expiry.
  local step = math.floor(full / rate / 8) + 1

  local quota = ' of ' .. ARGV[arg] .. ', ' .. ARGV[arg + 1] .. '/us at '
  local level = WHOLE .. '/' .. ARGV[arg + 2] .. quota .. stamp

  -- Returns the start of the step in which a level will be empty.
  local function step_of(ticks, at)
    local empty = at + (ticks + -ticks % rate) / rate
    return empty - empty % step
  end

  -- `expiry_step`: the step in which the stored level will be empty, if this version of
  -- the quota wrote the level and so set the expiry.
  local function afford(key, n, cost)
    local text = call('HGET', key, 'used')
    local ticks, at, blocked, expiry_step = 0, now, 0, nil
    if text then
      local digits, old_per, old_quota, time, rest = match(text, '^(%d+)/(%d+)( of %d+, %d+/us at )(%d+)(.*)$')
      ticks, at, old_per = integer(digits), integer(time), integer(old_per)
      if rest ~= '' then blocked = rest and blocked_until(rest) end
      if not (ticks and at and blocked and old_per and old_per > 0) then error('STATE used', 0) end
      if old_per ~= per then ticks = math.floor(math.min(ticks / old_per * per, EXACT) + 0.5) end
      ticks = math.min(ticks, MAX_TICKS)
      if old_per == per and old_quota == quota and blocked == 0 then expiry_step = step_of(ticks, at) end
      if at <= now then ticks = math.max(0, ticks - (now - at) * rate) end
    end
    local ahead, unit = at > now, cost * per
    if (blocked <= now and ticks + n * unit <= full) or cost == 0 then
      return n, blocked, ahead, ticks, nil, nil, expiry_step
    end
    if blocked > now then return 0, blocked, ahead, ticks end
    return math.max(0, math.floor((full - ticks) / unit)), blocked, ahead, ticks, nil, nil, expiry_step
  end

  local function charge(key, n, own, k, cost, blocked, ahead, ticks, _, _, expiry_step)
    if k * cost > 0 or (ahead and n * cost > 0) then
      ticks = math.min(ticks + k * cost * per, MAX_TICKS)
      local text = format(level, ticks)
      if blocked > now then text = text .. BLOCKED .. format(WHOLE, blocked) end
      call('HSET', key, 'used', text)
      local begin = step_of(ticks, now)
      if begin ~= expiry_step then expire(key, begin + step, blocked) end
    elseif n * cost > 0 and not expiry_step then
      local needed = math.max(now + math.ceil(ticks / rate), blocked)
      -- The check stays denied even if Redis rejects the write.
      if needed > now and now + call('PTTL', key) * 1000 < needed then
        failure(expire, key, step_of(ticks, now) + step, blocked)
      end
    end
  end

  -- Units charged at `stamp` have drained since then.
  local function give_back(key, units, stamp, blocked, _, ticks)
    local left = math.min(units * per - math.max(0, now - (stamp or now)) * rate, ticks)
    if left > 0 then charge(key, 1, 1, 0, 1, blocked, true, ticks - left) end
  end

  local function room(most, ticks)
    return math.max(0, math.floor((math.min(most * per, MAX_TICKS) - ticks) / per))
  end

  return afford, charge, give_back, room
end
