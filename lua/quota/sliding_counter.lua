--[[
  sliding_counter: adds this window's count and the share of the previous window's
  count that still overlaps, rounded down. Windows are aligned to the clock.

  KEYS     hash: used, a text (see hash_state) such as `7+5 since 1763680440000000`:
           units of the current and of the previous window, and the start of the
           current one (us)
  ARGV     quota: limit, window (us), 0, 0
  State    current, previous
  Writes   a charge: HSET; with the first of a window also PEXPIREAT. A denial:
           nothing, except that a window dated in the future is re-dated to the
           current one.
]]
-- The maximum count, so that debt stays exact.
local MAX_UNITS = 4503599627370496

local function sliding_counter(arg)
  local limit, window = ARGV[arg] + 0, ARGV[arg + 1] + 0
  local start = now - now % window
  local counts = WHOLE .. '+' .. WHOLE .. format(' since ' .. WHOLE, start)

  -- `has_expiry`: this window has used units, so the key already has its expiry.
  local function afford(key, n, cost)
    local text = call('HGET', key, 'used')
    local cur, prev, ahead, blocked, has_expiry = 0, 0, false, 0, false
    if text then
      local digits, more, time, rest = match(text, '^(%d+)%+(%d+) since (%d+)(.*)$')
      local stored, before, since = integer(digits), integer(more), integer(time)
      if rest ~= '' then blocked = rest and blocked_until(rest) end
      if not (stored and before and since and blocked) then error('STATE used', 0) end
      stored, before = math.min(stored, MAX_UNITS), math.min(before, MAX_UNITS)
      if since >= start then
        cur, prev, ahead = stored, before, since > now
        has_expiry = since == start and cur > 0
      elseif since + window >= start then
        prev = stored
      end
    end
    -- A limit times its window is at most 2^52. If a debt makes the product inexact,
    -- the estimate is above any limit.
    local estimate = cur + math.floor(prev * (start + window - now) / window)
    if (blocked <= now and estimate + n * cost <= limit) or cost == 0 then
      return n, blocked, ahead, cur, prev, nil, has_expiry
    end
    if blocked > now then return 0, blocked, ahead, cur, prev end
    return math.floor(math.max(0, limit - estimate) / cost), blocked, ahead, cur, prev, nil, has_expiry
  end

  local function charge(key, n, own, k, cost, blocked, ahead, cur, prev, _, has_expiry)
    local units = k * cost
    if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
    cur = math.min(cur + units, MAX_UNITS)
    local text = format(counts, cur, prev)
    if blocked > now then text = text .. BLOCKED .. format(WHOLE, blocked) end
    call('HSET', key, 'used', text)
    if has_expiry then return end
    -- Expires when neither count matters any more.
    expire(key, cur > 0 and start + 2 * window or prev > 0 and start + window or 0, blocked)
  end

  local function give_back(key, units, stamp, blocked, _, cur, prev)
    local before = cur + prev
    if not stamp or stamp >= start then
      cur = math.max(0, cur - units)
    elseif stamp + window >= start then
      prev = math.max(0, prev - units)
    end
    if cur + prev < before then charge(key, 1, 1, 0, 1, blocked, true, cur, prev) end
  end

  local function room(most, cur, prev)
    local rest = math.floor(prev * (start + window - now) / window)
    return math.max(0, math.min(most, MAX_UNITS) - cur - rest)
  end

  return afford, charge, give_back, room
end
