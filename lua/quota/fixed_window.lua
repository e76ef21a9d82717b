--[[
  fixed_window: counts the units of each window. A window begins in the
  millisecond of its first charge, or by the clock.

  KEYS     string: the units used, such as `17`. It expires at the end of the
           window. The expiry of a blocked key covers the block as well, so its
           text carries the end of the window and of the block (us):
           `17 until 1763680520000000 blocked until 1763680530000000`
  ARGV     quota: limit, window (us), 1 if aligned to the clock, offset (us)
  State    used, end of the window (ms); if nothing is used, the end of the
           window that a charge would begin
  Writes   a charge: INCRBY, or SET of a key that was blocked; PEXPIREAT with the
           first charge of a window. A refund of the last unit: UNLINK. A denial:
           nothing, except that a window that ends too late for this clock, or
           never, then ends with the current window.
]]

-- The maximum count, so that debt stays exact.
local MAX_UNITS = 4503599627370496
local WINDOW = WHOLE .. ' until ' .. WHOLE .. BLOCKED .. WHOLE

local function fixed_window(arg)
  local limit, window = ARGV[arg] + 0, ARGV[arg + 1] + 0
  -- A window that contains `now` ends from `earliest` to `latest` (ms); one that
  -- begins now ends at `latest`. Like expiries, windows begin and end with a
  -- millisecond.
  local now_ms = math.floor(now / 1000)
  local at = now_ms * 1000
  local earliest, latest = now_ms + 1, math.ceil((at + window) / 1000)
  if ARGV[arg + 2] == '1' then
    latest = math.ceil((at - (at - ARGV[arg + 3]) % window + window) / 1000)
    earliest = latest
  end

  -- `found`: the end of the counted window according to the key (ms), or nil.
  local function afford(key, n, cost)
    local text = call('GET', key)
    local used, ends, blocked, found = 0, latest, 0, nil
    if text then
      if match(text, '^[1-9]%d*$') or text == '0' then
        used, found = integer(text), call('PEXPIRETIME', key)
        -- Another writer removed the expiry.
        if found < 0 then found = math.huge end
      else
        local digits, time, rest = match(text, '^(%d+) until (%d+)( .*)$')
        used, found, blocked = integer(digits), integer(time), rest and blocked_until(rest)
        found = found and math.floor(found / 1000)
      end
      if not (used and found and blocked) then error('STATE value', 0) end
      if used == 0 or found <= now_ms then
        used, found = 0, nil
      elseif found >= earliest and found <= latest then
        ends = found
      end
    end
    local ahead = found ~= nil and found ~= ends
    if (blocked <= now and used + n * cost <= limit) or cost == 0 then
      return n, blocked, ahead, used, ends, nil, found
    end
    if blocked > now then return 0, blocked, ahead, used, ends, nil, found end
    return math.floor(math.max(0, limit - used) / cost), blocked, ahead, used, ends, nil, found
  end

  local function charge(key, n, own, k, cost, blocked, ahead, used, ends, _, found)
    local units = k * cost
    if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
    local after = math.min(used + units, MAX_UNITS)
    if found == ends and blocked == 0 then
      call('INCRBY', key, format(WHOLE, after - used))
    elseif blocked > now then
      call('SET', key, format(WINDOW, after, ends * 1000, blocked))
      expire(key, after > 0 and ends * 1000 or 0, blocked)
    elseif after > 0 then
      call('SET', key, format(WHOLE, after))
      expire(key, ends * 1000, 0)
    else
      call('UNLINK', key)
    end
    return nil, ends * 1000
  end

  -- `stamp` is the end of the window that was charged (us).
  local function give_back(key, units, stamp, blocked, _, used, ends, _, found)
    units = math.min(units, used)
    if units > 0 and (not stamp or stamp == found * 1000) then
      charge(key, 1, 1, 0, 1, blocked, true, used - units, ends)
    end
  end

  local function room(most, used)
    return math.max(0, math.min(most, MAX_UNITS) - used)
  end

  return afford, charge, give_back, room
end
