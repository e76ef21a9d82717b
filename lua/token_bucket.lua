--[[
  token_bucket: a level of used units that may rise to the capacity and drains
  at the refill rate; an idle bucket is full, its level 0. Counted in ticks, so
  that every sum is an integer: a unit is `per` ticks, and `rate` ticks drain
  each microsecond. What is stored is what was used, so a raised capacity gives
  room at once.

  KEYS     hash: used (units), at (us); blocked_until (us) where blocked
  ARGV     quota: capacity, rate, per, 0
  State    ticks used
  Writes   a charge: HSET, PEXPIREAT. A denial: nothing, but that a level dated
           in the future is re-dated to now (after a step back of the server's
           clock it would not drain), and a TTL that is too short lengthened.
]]

-- The most that is ever stored, so that debt cannot leave the exact range.
local MOST_TICKS = 562949953421312

local function token_bucket(arg)
  local capacity, rate, per = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local full = capacity * per

  -- The last level, its text and when it will be empty are kept, since idle
  -- buckets that are charged alike hold the same.
  local last_ticks, last_used, last_empty

  local function afford(key, n, cost)
    local state = try('HMGET', key, 'used', 'at', 'blocked_until')
    local used, at, blocked = state[1], state[2], state[3]
    if used == nil then return nil, state.err end
    local ticks, ahead = 0, false
    if used or at then
      used, at = tonumber(used), tonumber(at)
      if not (used and used >= 0 and used <= EXACT) then return nil, 'STATE used' end
      if not (at and at >= 0 and at <= EXACT and at % 1 == 0) then return nil, 'STATE at' end
      -- `used` keeps 16 digits; rounding gives back the ticks that were meant.
      -- `% 1` cuts as `floor` does, without a call.
      ticks = used * per + 0.5
      ticks = ticks - ticks % 1
      if ticks > MOST_TICKS then ticks = MOST_TICKS end
      if at > now then
        ahead = true
      else
        ticks = ticks - (now - at) * rate
        if ticks < 0 then ticks = 0 end
      end
    end
    if blocked then
      blocked = integer(blocked)
      if not blocked then return nil, 'STATE blocked_until' end
    else
      blocked = 0
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
        last_ticks, last_used, last_empty = ticks, format('%.16g', ticks / per), now + ceil(ticks / rate)
      end
      local done = try('HSET', key, 'used', last_used, 'at', stamp)
      if done ~= 0 and type(done) == 'table' then return done.err end
      if blocked > 0 and blocked <= now then call('HDEL', key, 'blocked_until') end
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
