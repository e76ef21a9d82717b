--[[
  fixed_window: a count that starts anew with each window, which begins with the
  first charge or by the clock.

  KEYS     hash: used (units), start (us); blocked_until (us) where blocked
  ARGV     quota: limit, window (us), 1 if by the clock, offset (us)
  State    used, start of the window (where nothing is used: of the window that
           a charge would begin)
  Writes   a charge: HINCRBY; where a window begins, HSET and PEXPIREAT its end.
           A denial: nothing, but that a window dated in the future is re-dated
           to that of now.
]]

-- The most that is ever stored, so that debt stays exact.
local MOST_UNITS = 4503599627370496
local find = string.find

local function fixed_window(arg)
  local limit, window = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local fresh = now
  if ARGV[arg + 2] == '1' then fresh = now - (now - ARGV[arg + 3]) % window end

  local function afford(key, n, cost)
    local state = try('HMGET', key, 'used', 'start', 'blocked_until')
    local digits, since, blocked = state[1], state[2], state[3]
    if digits == nil then return nil, state.err end
    local used, start, ahead = 0, fresh, false
    if digits or since then
      -- HINCRBY takes digits alone, not all that is a number.
      local stored = digits and not find(digits, '%D') and tonumber(digits)
      if not (stored and stored <= EXACT) then return nil, 'STATE used' end
      since = tonumber(since)
      if not (since and since >= 0 and since <= EXACT and since % 1 == 0) then return nil, 'STATE start' end
      if stored > 0 and since + window > now then
        used = stored
        if since > now then ahead = true else start = since end
      end
    end
    if blocked then
      blocked = integer(blocked)
      if not blocked then return nil, 'STATE blocked_until' end
    else
      blocked = 0
    end
    if (blocked <= now and used + n * cost <= limit) or cost == 0 then return n, blocked, ahead, used, start end
    if blocked > now then return 0, blocked, ahead, used, start end
    return floor(max(0, limit - used) / cost), blocked, ahead, used, start
  end

  local function charge(key, n, own, k, cost, blocked, ahead, used, start)
    local units = k * cost
    if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
    local after = used + units
    if after > MOST_UNITS then after = MOST_UNITS end
    local done
    if used == 0 or ahead then
      done = try('HSET', key, 'used', format(WHOLE, after), 'start', format(WHOLE, start))
    else
      done = try('HINCRBY', key, 'used', format(WHOLE, after - used))
      -- The expiry is this window's end already, where no block has moved it.
      if blocked == 0 and type(done) ~= 'table' then return end
    end
    if type(done) == 'table' then return done.err end
    if blocked > 0 and blocked <= now then call('HDEL', key, 'blocked_until') end
    return expire(key, after > 0 and start + window or 0, blocked)
  end

  local function give_back(key, units, stamp, blocked, _, used, start)
    if stamp >= start then return charge(key, 1, 1, 0, 1, blocked, true, max(0, used - units), start) end
  end

  return afford, charge, give_back
end
