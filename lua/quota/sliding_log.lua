--[[
  sliding_log: stores every charge with its time, so that no window of the length
  holds more than the limit. Each take adds one entry, for any number of units.
  Its member carries the running total. So the units in the window are a
  difference, and a check reads only the entries at the edges.

  KEYS     zset: score us, member `total:units`, the running total (16 digits)
           after this entry and its units; member `block`, whose score is the
           end of the block (us), and which stays the highest
  ARGV     quota: limit, window (us), 1 if denied checks are logged too, 0
  State    used, score of the newest entry, score of the entry that must leave
           the window before a check of this cost is admitted (0: none must)
  Writes   a charge: ZADD, PEXPIREAT, and at most 256 stale entries removed.
           A denial: nothing, except that entries dated in the future become one
           dated now; if there are more than 256, all entries do. If denied checks
           are logged: the same as a charge.
]]

-- The maximum of used units, so that debt stays exact. Beyond it the running total
-- restarts.
local MAX_TOTAL = 4503599627370496
local TRIM = 256
local ENTRY = IS_64_BIT and '%016d:%d' or '%016.0f:%.0f'
local match = string.match

local function sliding_log(arg)
  local limit, window, count_denied = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2] == '1'
  -- Entries with this score or a lower one have left the window.
  local edge = format(WHOLE, now - window)
  local inside = '(' .. edge

  local function entry(member)
    local total, units = string.match(member, '^(%d+):(%d+)$')
    return integer(total), integer(units)
  end

  -- Returns the first member that is an entry: the first one may be `block`.
  local function first_entry(members)
    if members[1] == 'block' then return members[2] end
    return members[1]
  end

  -- Returns the score of the oldest entry that counts, its running total, and the
  -- total before it.
  local function oldest(key)
    local first = call('ZRANGEBYSCORE', key, inside, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
    -- Among entries dated in the future `block` is not the highest.
    if first[1] == 'block' then
      first = call('ZRANGEBYSCORE', key, inside, '+inf', 'WITHSCORES', 'LIMIT', '1', '1')
    end
    local total, units = entry(first[1])
    if total and units and units <= total then return tonumber(first[2]), total, total - units end
  end

  -- Returns the running total before the first entry dated in the future.
  local function base_ahead(key)
    local members = call('ZRANGEBYSCORE', key, '(' .. stamp, '+inf', 'LIMIT', '0', '2')
    local total, units = entry(first_entry(members) or '')
    return total and units and integer(total - units)
  end

  local function total_at(key, rank)
    local at = format(WHOLE, rank)
    local member = call('ZRANGE', key, at, at)[1]
    return member and entry(member) or EXACT
  end

  -- Returns the first rank whose total is at least `total`; `block` counts as the
  -- end.
  local function rank_of(key, total)
    local low, high = 0, call('ZCARD', key)
    while low < high do
      local middle = math.floor((low + high) / 2)
      if total_at(key, middle) < total then low = middle + 1 else high = middle end
    end
    return low
  end

  local function add(key, total, units)
    call('ZADD', key, stamp, format(ENTRY, total, units))
  end

  local function afford(key, n, cost)
    local top = call('ZREVRANGE', key, '0', '0', 'WITHSCORES')
    local blocked, newest, score = 0, top[1], top[2]
    if newest == 'block' then
      blocked = integer(score)
      if not blocked then error('STATE block', 0) end
      top = call('ZREVRANGE', key, '1', '1', 'WITHSCORES')
      newest, score = top[1], top[2]
    end
    local used, at, ahead, total = 0, 0, false, 0
    local first_at, first_total
    if newest then
      total, at = entry(newest), integer(score)
      if not total then error('STATE member', 0) end
      if not at then error('STATE score', 0) end
      if at > now then
        at, ahead = now, true
        -- Rejects corrupt entries before the first write.
        if not base_ahead(key) then error('STATE member', 0) end
        if blocked == 0 then blocked = tonumber(call('ZSCORE', key, 'block') or 0) end
      end
      if now - at < window then
        local base
        first_at, first_total, base = oldest(key)
        if not (base and base <= total) then error('STATE member', 0) end
        used = total - base
      else
        at = 0
      end
    end
    local own = n
    if cost > 0 then
      if blocked > now then
        own = 0
      elseif used + n * cost > limit then
        own = math.floor(math.max(0, limit - used) / cost)
      end
    end
    return own, blocked, ahead, used, at, total, first_at, first_total
  end

  -- Merges the units in the window into one entry, which leaves the window late,
  -- never early. UNLINK frees the others in the background.
  local function merge_window(key, used, at, blocked)
    call('UNLINK', key)
    if used > 0 then call('ZADD', key, format(WHOLE, at), format(ENTRY, used, used)) end
    if blocked > now then call('ZADD', key, format(WHOLE, blocked), 'block') end
  end

  -- Merges the entries dated in the future into one dated now. Removing many would
  -- hold the server up, so then the whole window is merged. Returns the total, and
  -- the time and total of the oldest entry.
  -- Adds before it removes: without memory the first write fails, and no entry is
  -- lost.
  local function redate(key, used, total, blocked, first_at, first_total)
    local base = base_ahead(key)
    if not base then return total, first_at, first_total end
    local ahead = call('ZCOUNT', key, '(' .. stamp, '+inf')
    if ahead > (blocked > now and TRIM + 1 or TRIM) then
      merge_window(key, used, now, blocked)
      return used, now, used
    end
    add(key, total, total - base)
    call('ZREMRANGEBYSCORE', key, '(' .. stamp, '+inf')
    if blocked > now then call('ZADD', key, format(WHOLE, blocked), 'block') end
    return total, first_at, first_total
  end

  local function charge(key, n, own, k, cost, blocked, ahead, used, at, total, first_at, first_total)
    local units = k * cost
    if count_denied then units = units + math.min((n - own) * cost, limit) end
    if n > 0 and cost > 0 and (units > 0 or ahead) then
      if ahead then
        total, first_at, first_total = redate(key, used, total, blocked, first_at, first_total)
      end
      units = math.min(units, math.max(0, MAX_TOTAL - used))
      if units > 0 then
        add(key, total + units, units)
        total = total + units
        -- Without stale entries, the total equals the units in the window.
        local has_stale = total > used + units
        if total > MAX_TOTAL then
          merge_window(key, used, at, blocked)
          total, first_at, first_total = used + units, at, used
          add(key, total, units)
        end
        if used == 0 then first_at, first_total = now, total end
        used, at = used + units, now
        local excess = has_stale and call('ZCOUNT', key, '-inf', edge) or 0
        -- If denials count, only the newest `limit` units can deny a check.
        if count_denied then excess = math.max(excess, rank_of(key, total - limit + 1)) end
        if excess > 0 then call('ZREMRANGEBYRANK', key, '0', format(WHOLE, math.min(excess, TRIM) - 1)) end
      end
      if blocked > 0 and blocked <= now then call('ZREM', key, 'block') end
      expire(key, used > 0 and at + window or 0, blocked)
    end
    cost = math.max(cost, 1)
    if used + cost <= limit then return 0 end
    -- The common case: only the oldest entry must leave.
    local needed = total - limit + cost
    if first_total and first_total >= needed then return math.min(first_at, now) end
    local rank = format(WHOLE, rank_of(key, needed))
    return math.min(integer(call('ZRANGE', key, rank, rank, 'WITHSCORES')[2]) or now, now)
  end

  -- Returns the oldest units first: they would leave the window first. The work
  -- grows with the entries returned, not with the stale entries.
  local function give_back(key, units, stamp, blocked, ahead, used, at, total)
    if math.min(units, used) == 0 or (stamp or now) + window <= now then return end
    if ahead then total = redate(key, used, total, blocked) end
    if blocked > 0 and blocked <= now then call('ZREM', key, 'block') end
    local base = total - used + math.min(units, used)
    if base == total then
      call('UNLINK', key)
      if blocked > now then call('ZADD', key, format(WHOLE, blocked), 'block') end
      return expire(key, 0, blocked)
    end
    -- The new base is stored in two entries: the first one that stays, which loses
    -- units, and the newest stale one (if any), whose total is raised.
    local function rewrite(rank, new_base, new_total)
      local old = call('ZRANGE', key, rank, rank, 'WITHSCORES')
      local old_total, units = entry(old[1])
      if not (old_total and units) then error('STATE member', 0) end
      new_base, new_total = new_base or old_total - units, new_total or old_total
      local new = format(ENTRY, new_total, new_total - new_base)
      if new == old[1] then return end
      call('ZADD', key, old[2], new)
      call('ZREM', key, old[1])
    end
    local stale, first_kept = call('ZCOUNT', key, '-inf', edge), rank_of(key, base + 1)
    rewrite(first_kept, base)
    if stale > 0 then rewrite(stale - 1, nil, base) end
    if first_kept > stale then call('ZREMRANGEBYRANK', key, stale, first_kept - 1) end
    expire(key, at + window, blocked)
  end

  local function room(most, used)
    return math.max(0, math.min(most, MAX_TOTAL) - used)
  end

  return afford, charge, give_back, room
end
