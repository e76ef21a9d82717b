--[[
  fixed_window: a count that starts anew with each window, which begins with the
  first charge or by the clock.

  KEYS     hash: used, a text (see there) such as `17 since 1763680460000000`:
           units, and when the window began (us)
  ARGV     quota: limit, window (us), 1 if by the clock, offset (us)
  State    used, start of the window (where nothing is used: of the window that
           a charge would begin)
  Writes   a charge: HSET; where a window begins, also PEXPIREAT its end.
           A denial: nothing, but that a window dated in the future is re-dated
           to that of now.
]]

-- The most that is ever stored, so that debt stays exact.
local MOST_UNITS = 4503599627370496
local SINCE = ' since '
local WINDOW = WHOLE .. SINCE .. WHOLE

local function fixed_window(arg)
  local limit, window = ARGV[arg] + 0, ARGV[arg + 1] + 0
  local fresh = now
  if ARGV[arg + 2] == '1' then fresh = now - (now - ARGV[arg + 3]) % window end

  -- `kept`: the window stands already with its expiry, and no block beside it.
  local function afford(key, n, cost, _, at_once)
    local text = call('HGET', key, 'used')
    local used, start, blocked, ahead, kept = 0, fresh, 0, false, false
    if text then
      local since
      -- Where a block stands behind, 23 characters from the end are too late.
      local first, last = find(text, SINCE, -23, true)
      if first then used, since = sub(text, 1, first - 1) + 0, sub(text, last + 1) + 0 end
      if first and since <= now and since >= 0 and used >= 0 and used <= EXACT and used % 1 + since % 1 == 0 then
        kept = used > 0 and since + window > now
        if kept and at_once and used + at_once <= limit then
          call('HSET', key, 'used', format(WINDOW, used + at_once, since))
          return n, nil, nil, used, since
        end
      else
        local digits, time, rest = string.match(text, '^(%d+) since (%d+)(.*)$')
        used, since = integer(digits), integer(time)
        if rest ~= '' then blocked = rest and blocked_until(rest) end
        if not (used and since and blocked) then error('STATE used', 0) end
      end
      if used == 0 or since + window <= now then
        used = 0
      elseif since > now then
        ahead = true
      else
        start = since
      end
    end
    if (blocked <= now and used + n * cost <= limit) or cost == 0 then
      return n, blocked, ahead, used, start, nil, kept
    end
    if blocked > now then return 0, blocked, ahead, used, start end
    return math.floor(math.max(0, limit - used) / cost), blocked, ahead, used, start, nil, kept
  end

  local function writers()
    local function charge(key, n, own, k, cost, blocked, ahead, used, start, _, kept)
      local units = k * cost
      if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
      local after = used + units
      if after > MOST_UNITS then after = MOST_UNITS end
      local text = format(WINDOW, after, start)
      if blocked > now then text = text .. BLOCKED .. format(WHOLE, blocked) end
      call('HSET', key, 'used', text)
      if not kept then expire(key, after > 0 and start + window or 0, blocked) end
    end

    local function give_back(key, units, stamp, blocked, _, used, start)
      if stamp >= start then charge(key, 1, 1, 0, 1, blocked, true, math.max(0, used - units), start) end
    end

    return charge, give_back
  end

  return afford, writers
end
