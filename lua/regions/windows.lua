--[[
  windows: counts by the names of windows, for fixed windows by the clock and sliding
  counters of several regions. A window is named by its start, so regions whose
  clocks differ charge the same window. With carry, units above the limit of a window
  reduce the limits of those that follow.

  KEYS     hash: used, a text (see hash_state) such as
           `5+7+0 since 1763680440000000 debt 3 after 2`: units of the previous, the
           current and the next window; the start of the current one (us); units
           of earlier windows that count in it; this debt when the previous window
           began
  ARGV     quota: limit, window (us), 1 if fixed windows, offset (us)
  State    as fixed_window, with the debt, or as sliding_counter; then the windows, a
           table that `charge` and `give_back` take
  Writes   a charge: HSET, PEXPIREAT; HINCRBY of units that are forgiven. A denial:
           nothing, except that counts of a window that begins too late for this
           clock move to the current one

  The function defines `apply` too: counts units of a peer in the window that they
  name. `give_back` returns the name of the window, and the units given back.
]]
-- The maximum count, so that debt stays exact.
local MAX_UNITS = 4503599627370496
local PATTERN = '^(%d+)%+(%d+)%+(%d+) since (%d+) debt (%d+) after (%d+)(.*)$'
local COUNTS = format('%s+%s+%s since %s debt %s after %s', WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE)

-- Counts units by their fate: `forgiven`, `dropped` or `far`.
local function count(fate, units)
  if units > 0 then call('HINCRBY', counts, fate, format(WHOLE, units)) end
end

-- `most_debt`, and whether it is carried over: see quota_at. `cut`: of a share, the
-- local time of the cut (us).
local function windows(arg, most_debt, carry, cut)
  local limit, window, offset = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 3] + 0
  local is_fixed = ARGV[arg + 2] == '1'
  -- Fixed windows begin with a millisecond.
  local step = is_fixed and 1000 or 1
  local function start_of(at)
    at = at - at % step
    return at - (at - offset) % window
  end
  local here = start_of(now)

  -- Returns the first instant of the window that is `ahead` windows after that of `w`.
  local function begins(w, ahead)
    local start = w.start + ahead * window
    return start + -start % step
  end

  -- Returns the instant at which to count: a clock that is behind keeps counting in
  -- the window that has begun.
  local function instant(w)
    return math.max(now, begins(w, 0))
  end

  -- The end of a window: returns the next window's debt, and the forgiven units.
  local function carried(debt, used)
    local over = carry and math.max(0, debt + used - limit) or 0
    return math.min(over, most_debt), math.max(0, over - most_debt)
  end

  -- Ends a window with `used` units, the last of `times` equal ones.
  local function pass(w, used, times)
    w.prior = math.max(0, w.debt - (times - 1) * limit)
    local debt, forgiven = carried(w.prior, used)
    w.debt, w.forgiven = debt, w.forgiven + forgiven
  end

  -- Moves on to the window of this clock. Returns whether the clock was stepped back
  -- so far that the counts move to an earlier window.
  local function enter(w)
    local is_redated = here + window < w.start
    if is_redated then w.next = 0 end
    if not is_redated and w.start >= here then return false end
    local passed = math.max(0, math.floor((here - w.start) / window))
    for _ = 1, math.min(passed, 2) do
      pass(w, w.current, 1)
      w.previous, w.current, w.next = w.current, w.next, 0
    end
    if passed > 2 then
      pass(w, 0, passed - 2)
      w.previous, w.current, w.next = 0, 0, 0
    end
    w.start = here
    return is_redated
  end

  -- Returns the windows, the end of the block, and the result of `enter`.
  local function read(key)
    local text = call('HGET', key, 'used')
    local w = { previous = 0, current = 0, next = 0, start = here, debt = 0, prior = 0, forgiven = 0 }
    if not text then return w, 0, false end
    local previous, current, next, start, debt, prior, rest = match(text, PATTERN)
    w.previous, w.current, w.next = integer(previous), integer(current), integer(next)
    w.start, w.debt, w.prior = integer(start), integer(debt), integer(prior)
    local blocked = rest and (rest == '' and 0 or blocked_until(rest))
    if not (w.previous and w.current and w.next and w.start and w.debt and w.prior and blocked) then
      error('STATE used', 0)
    end
    return w, blocked, enter(w)
  end

  -- A share has no debt. A limit was used in the window of the cut.
  if cut then
    local read_stored, start = read, start_of(cut)
    most_debt, carry = 0, false
    read = function(key)
      local w, blocked, is_redated = read_stored(key)
      if w.start == start then w.current = math.max(w.current, limit) end
      if w.start == start + window then w.previous = math.max(w.previous, limit) end
      return w, blocked, is_redated
    end
  end

  -- A count is kept for a window after its own, since late charges name it; a debt
  -- until it is repaid.
  local function needed_until(w)
    local kept = 0
    if w.next > 0 then kept = begins(w, 3)
    elseif w.current > 0 then kept = begins(w, 2)
    elseif w.previous > 0 then kept = begins(w, 1) end
    local left = w.debt + math.max(0, w.current - limit) + math.max(0, w.next - limit)
    if carry and w.prior + left > 0 then
      kept = math.max(kept, begins(w, 2 + math.ceil(math.min(left, 2 * most_debt) / limit)))
    end
    return kept
  end

  local function write(key, w, blocked)
    count('forgiven', w.forgiven)
    local text = format(COUNTS, w.previous, w.current, w.next, w.start, w.debt, w.prior)
    if blocked > now then text = text .. BLOCKED .. format(WHOLE, blocked) end
    call('HSET', key, 'used', text)
    expire(key, needed_until(w), blocked)
  end

  local function afford(key, n, cost)
    local w, blocked, is_redated = read(key)
    local a, b, used = w.current, w.previous, nil
    if is_fixed then
      a, b = w.current + w.debt, begins(w, 1) / 1000
      used = a
    else
      used = w.current + math.floor(w.previous * (w.start + window - instant(w)) / window)
    end
    local own = n
    if cost > 0 then
      own = blocked > now and 0 or math.min(n, math.floor(math.max(0, limit - used) / cost))
    end
    return own, blocked, is_redated, a, b, nil, w
  end

  local function charge(key, n, own, k, cost, blocked, ahead, _, _, _, w)
    if n * cost == 0 or (k == 0 and not ahead) then return end
    w.current = math.min(w.current + k * cost, MAX_UNITS)
    write(key, w, blocked)
    return nil, is_fixed and begins(w, 1) or instant(w)
  end

  local function give_back(key, units, stamp, blocked, _, _, _, _, w)
    local place, name = 'current', w.start
    if stamp and is_fixed then
      if stamp ~= begins(w, 1) then return name, 0 end
    elseif stamp and stamp < w.start then
      place, name = 'previous', w.start - window
      if stamp < name then return name, 0 end
    end
    local back = math.min(units, w[place])
    w[place] = w[place] - back
    if back > 0 then write(key, w, blocked) end
    return name, back
  end

  local function apply(key, name, units)
    local w, blocked = read(key)
    local place = 'current'
    if name > w.start then
      place = 'next'
      -- The clocks are apart by more than a window.
      if name > w.start + window then count('far', units) end
    elseif name + window == w.start then
      place = 'previous'
    elseif name ~= w.start then
      return count('dropped', units)
    end
    local _, forgiven_before = carried(w.prior, w.previous)
    local counted = math.min(units, math.max(0, limit + most_debt - w[place]))
    counted = math.max(counted, -w[place])
    w[place] = w[place] + counted
    w.forgiven = w.forgiven + math.max(0, units - counted)
    if place == 'previous' and carry then
      -- Without the debt of then, late units would be lost.
      local debt, forgiven = carried(w.prior, w.previous)
      w.debt, w.forgiven = debt, w.forgiven + math.max(0, forgiven - forgiven_before)
    end
    write(key, w, blocked)
  end

  return afford, charge, give_back, nil, apply
end
