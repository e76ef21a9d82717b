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
local COUNT, WINDOW = WHOLE .. '%s', WHOLE .. ' since ' .. WHOLE

local function fixed_window(arg)
  local limit, window = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local fresh = now
  if ARGV[arg + 2] == '1' then fresh = now - (now - ARGV[arg + 3]) % window end

  local function afford(key, n, cost)
    local text = try('HGET', key, 'used')
    local used, start, ahead, blocked, kept = 0, fresh, false, 0, nil
    if text then
      if text.err then return nil, text.err end
      local stored, since
      local is_usual = sub(text, -23, -17) == ' since '
      if is_usual then
        stored, since = tonumber(sub(text, 1, -24)), tonumber(sub(text, -16))
      else
        local digits, time, rest = match(text, '^(%d+) since (%d+)(.*)$')
        stored, since = integer(digits), integer(time)
        if rest ~= '' then blocked = rest and blocked_until(rest) end
        if not (stored and blocked) then return nil, 'STATE used' end
      end
      if not (stored and stored >= 0 and stored <= EXACT and stored % 1 == 0) then return nil, 'STATE used' end
      if not (since and since >= 0 and since <= EXACT and since % 1 == 0) then return nil, 'STATE used' end
      if stored > 0 and since + window > now then
        used = stored
        if since > now then
          ahead = true
        else
          start = since
          if is_usual then kept = sub(text, -23) end
        end
      end
    end
    if (blocked <= now and used + n * cost <= limit) or cost == 0 then
      return n, blocked, ahead, used, start, nil, kept
    end
    if blocked > now then return 0, blocked, ahead, used, start end
    return floor(max(0, limit - used) / cost), blocked, ahead, used, start, nil, kept
  end

  -- `kept` is the text of the window, where it stands already with its expiry,
  -- and no block beside it.
  local function charge(key, n, own, k, cost, blocked, ahead, used, start, _, kept)
    local units = k * cost
    if n == 0 or cost == 0 or (units == 0 and not ahead) then return end
    local after = used + units
    if after > MOST_UNITS then after = MOST_UNITS end
    local text = kept and format(COUNT, after, kept) or format(WINDOW, after, start)
    if blocked > now then text = text .. format(BLOCKED, blocked) end
    local done = try('HSET', key, 'used', text)
    if done ~= 0 and type(done) == 'table' then return done.err end
    if kept then return end
    return expire(key, after > 0 and start + window or 0, blocked)
  end

  local function give_back(key, units, stamp, blocked, _, used, start)
    if stamp >= start then return charge(key, 1, 1, 0, 1, blocked, true, max(0, used - units), start) end
  end

  return afford, charge, give_back
end
