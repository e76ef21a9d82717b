--[[
  sliding_counter: this window's count, and the share of the previous window's
  that still overlaps, rounded down. Windows begin by the clock.

  KEYS     hash: cur, prev (units), start (us) of the current window;
           blocked_until (us) where blocked
  ARGV     quota: limit, window (us), 0, 0
  State    cur, prev
  Writes   a charge: HSET, PEXPIREAT. A denial: nothing, but that a window dated
           in the future is re-dated to that of now.
]]
local function sliding_counter(arg)
  local limit, window = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local start = now - now % window
  local start_text = format(WHOLE, start)
  -- A count times the window must stay exact.
  local most = floor(4503599627370496 / window)

  local function afford(key, n, cost)
    local state = try('HMGET', key, 'cur', 'prev', 'start', 'blocked_until')
    local stored, before, since, blocked = state[1], state[2], state[3], state[4]
    if stored == nil then return nil, state.err end
    local cur, prev, ahead = 0, 0, false
    if stored or before or since then
      stored, before, since = tonumber(stored), tonumber(before), tonumber(since)
      if not (stored and stored >= 0 and stored <= EXACT and stored % 1 == 0) then return nil, 'STATE cur' end
      if not (before and before >= 0 and before <= EXACT and before % 1 == 0) then return nil, 'STATE prev' end
      if not (since and since >= 0 and since <= EXACT and since % 1 == 0) then return nil, 'STATE start' end
      if stored > most then stored = most end
      if before > most then before = most end
      if since >= start then
        cur, prev, ahead = stored, before, since > now
      elseif since + window >= start then
        prev = stored
      end
    end
    if blocked then
      blocked = integer(blocked)
      if not blocked then return nil, 'STATE blocked_until' end
    else
      blocked = 0
    end
    local estimate = cur + prev - ceil(prev * (now - start) / window)
    if (blocked <= now and estimate + n * cost <= limit) or cost == 0 then return n, blocked, ahead, cur, prev end
    if blocked > now then return 0, blocked, ahead, cur, prev end
    return floor(max(0, limit - estimate) / cost), blocked, ahead, cur, prev
  end

  local function charge(key, n, own, k, cost, blocked, ahead, cur, prev)
    local units = k * cost
    if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
    cur = cur + units
    if cur > most then cur = most end
    local done = try('HSET', key, 'cur', format(WHOLE, cur), 'prev', format(WHOLE, prev), 'start', start_text)
    if done ~= 0 and type(done) == 'table' then return done.err end
    if blocked > 0 and blocked <= now then call('HDEL', key, 'blocked_until') end
    -- Until the estimate is 0: this window's count has to become the previous
    -- one's, and its share small enough.
    local untouched = now
    if cur > 0 then
      untouched = start + 2 * window - ceil(window / cur) + 1
    elseif prev > 0 then
      untouched = start + window - ceil(window / prev) + 1
    end
    return expire(key, untouched, blocked)
  end

  local function give_back(key, units, stamp, blocked, _, cur, prev)
    if stamp >= start then
      cur = max(0, cur - units)
    elseif stamp + window >= start then
      prev = max(0, prev - units)
    end
    return charge(key, 1, 1, 0, 1, blocked, true, cur, prev)
  end

  return afford, charge, give_back
end
