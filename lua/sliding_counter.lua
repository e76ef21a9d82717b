--[[
  sliding_counter: this window's count, and the share of the previous window's
  that still overlaps, rounded down. Windows begin by the clock.

  KEYS     hash: used, a text (see there) such as `7+5 since 1763680440000000`:
           units of the current and of the previous window, and when the current
           one began (us)
  ARGV     quota: limit, window (us), 0, 0
  State    current, previous
  Writes   a charge: HSET; with the first of a window also PEXPIREAT. A denial:
           nothing, but that a window dated in the future is re-dated to that of
           now.
]]
local ceil = math.ceil

local function sliding_counter(arg)
  local limit, window = ARGV[arg] + 0, ARGV[arg + 1] + 0
  local start = now - now % window
  local since_start = format(' since ' .. WHOLE, start)
  local counts = WHOLE .. '+' .. WHOLE .. since_start
  -- A count times the window must stay exact.
  local most = math.floor(4503599627370496 / window)

  -- `kept`: something was used of this window, so that it stands already with its
  -- expiry, and no block beside it.
  local function afford(key, n, cost, _, at_once)
    local text = call('HGET', key, 'used')
    local cur, prev, ahead, blocked, kept = 0, 0, false, 0, false
    if text then
      local plus, since = find(text, '+', 1, true), find(text, since_start, -#since_start, true)
      local is_current = plus and since
      if is_current then cur, prev = sub(text, 1, plus - 1) + 0, sub(text, plus + 1, since - 1) + 0 end
      if is_current and cur >= 0 and prev >= 0 and cur <= most and prev <= most and cur % 1 + prev % 1 == 0 then
        kept = cur > 0
      else
        local digits, more, time, rest = string.match(text, '^(%d+)%+(%d+) since (%d+)(.*)$')
        local stored, before = integer(digits), integer(more)
        since = integer(time)
        if rest ~= '' then blocked = rest and blocked_until(rest) end
        if not (stored and before and since and blocked) then error('STATE used', 0) end
        stored, before = math.min(stored, most), math.min(before, most)
        cur, prev = 0, 0
        if since >= start then
          cur, prev, ahead = stored, before, since > now
        elseif since + window >= start then
          prev = stored
        end
      end
    end
    local estimate = cur + prev - ceil(prev * (now - start) / window)
    if kept and at_once and estimate + at_once <= limit then
      call('HSET', key, 'used', format(counts, cur + at_once, prev))
      return n, nil, nil, cur, prev
    end
    if (blocked <= now and estimate + n * cost <= limit) or cost == 0 then
      return n, blocked, ahead, cur, prev, nil, kept
    end
    if blocked > now then return 0, blocked, ahead, cur, prev end
    return math.floor(math.max(0, limit - estimate) / cost), blocked, ahead, cur, prev, nil, kept
  end

  local function writers()
    local function charge(key, n, own, k, cost, blocked, ahead, cur, prev, _, kept)
      local units = k * cost
      if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
      cur = cur + units
      if cur > most then cur = most end
      local text = format(counts, cur, prev)
      if blocked > now then text = text .. BLOCKED .. format(WHOLE, blocked) end
      call('HSET', key, 'used', text)
      if kept then return end
      -- As long as either count can matter.
      expire(key, cur > 0 and start + 2 * window or prev > 0 and start + window or 0, blocked)
    end

    local function give_back(key, units, stamp, blocked, _, cur, prev)
      if stamp >= start then
        cur = math.max(0, cur - units)
      elseif stamp + window >= start then
        prev = math.max(0, prev - units)
      end
      charge(key, 1, 1, 0, 1, blocked, true, cur, prev)
    end

    return charge, give_back
  end

  return afford, writers
end
