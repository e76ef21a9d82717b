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
local WINDOW = WHOLE .. ' since ' .. WHOLE

local function fixed_window(arg)
  local limit, window = ARGV[arg] + 0, ARGV[arg + 1] + 0
  local fresh = now
  if ARGV[arg + 2] == '1' then fresh = now - (now - ARGV[arg + 3]) % window end

  -- `kept`: the window stands already with its expiry.
  local function afford(key, n, cost)
    local text = call('HGET', key, 'used')
    local used, start, blocked, ahead, kept = 0, fresh, 0, false, false
    if text then
      local digits, time, rest = match(text, '^(%d+) since (%d+)(.*)$')
      local since = integer(time)
      used = integer(digits)
      if rest ~= '' then blocked = rest and blocked_until(rest) end
      if not (used and since and blocked) then error('STATE used', 0) end
      kept = used > 0 and since <= now and since + window > now
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

  local function charge(key, n, own, k, cost, blocked, ahead, used, start, _, kept)
    local units = k * cost
    if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
    local after = math.min(used + units, MOST_UNITS)
    local text = format(WINDOW, after, start)
    if blocked > now then text = text .. BLOCKED .. format(WHOLE, blocked) end
    call('HSET', key, 'used', text)
    if not kept then expire(key, after > 0 and start + window or 0, blocked) end
  end

  local function give_back(key, units, stamp, blocked, _, used, start)
    if stamp >= start then charge(key, 1, 1, 0, 1, blocked, true, math.max(0, used - units), start) end
  end

  return afford, charge, give_back
end
