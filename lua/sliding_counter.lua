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
local find = string.find

local function sliding_counter(arg)
  local limit, window = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local start = now - now % window
  local since_start = format(' since ' .. WHOLE, start)
  local counts = WHOLE .. '+' .. WHOLE .. since_start
  -- A count times the window must stay exact.
  local most = floor(4503599627370496 / window)

  local function afford(key, n, cost)
    local text = try('HGET', key, 'used')
    local cur, prev, ahead, blocked, kept = 0, 0, false, 0, nil
    if text then
      if text.err then return nil, text.err end
      local stored, before, since
      local plus = find(text, '+', 1, true)
      if plus and sub(text, -#since_start) == since_start then
        stored, before, since = tonumber(sub(text, 1, plus - 1)), tonumber(sub(text, plus + 1, -1 - #since_start)), start
        kept = stored
      else
        local digits, more, time, rest = match(text, '^(%d+)%+(%d+) since (%d+)(.*)$')
        stored, before, since = integer(digits), integer(more), integer(time)
        if rest ~= '' then blocked = rest and blocked_until(rest) end
        if not (stored and since and blocked) then return nil, 'STATE used' end
      end
      if not (stored and stored >= 0 and stored <= EXACT and stored % 1 == 0) then return nil, 'STATE used' end
      if not (before and before >= 0 and before <= EXACT and before % 1 == 0) then return nil, 'STATE used' end
      if stored > most then stored = most end
      if before > most then before = most end
      if since >= start then
        cur, prev, ahead = stored, before, since > now
      elseif since + window >= start then
        prev = stored
      end
    end
    local estimate = cur + prev - ceil(prev * (now - start) / window)
    if (blocked <= now and estimate + n * cost <= limit) or cost == 0 then
      return n, blocked, ahead, cur, prev, nil, kept
    end
    if blocked > now then return 0, blocked, ahead, cur, prev end
    return floor(max(0, limit - estimate) / cost), blocked, ahead, cur, prev, nil, kept
  end

  -- `kept` is what was used of this window, where its text stands already, and no
  -- block beside it.
  local function charge(key, n, own, k, cost, blocked, ahead, cur, prev, _, kept)
    local units = k * cost
    if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
    cur = cur + units
    if cur > most then cur = most end
    local text = format(counts, cur, prev)
    if blocked > now then text = text .. format(BLOCKED, blocked) end
    local done = try('HSET', key, 'used', text)
    if done ~= 0 and type(done) == 'table' then return done.err end
    if kept and kept > 0 then return end
    -- As long as either count can matter.
    return expire(key, cur > 0 and start + 2 * window or prev > 0 and start + window or 0, blocked)
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
