--[[
  holds: shared by reserve and settle: the quotas of the call, and the holds of a
  key. A hold is a charge that can be settled by its id until it ends. Algorithms
  and takes do not know holds: a held unit is a used unit.

  Each key has its holds in a second key, a zset: score us of the end, member
  `id:units:ttl:what`, ttl in us. `what` is
    keep   when the hold ends, its units stay charged, and it becomes `late`
    back   when it ends, its units are refunded, and it becomes `late`
    late   it has ended; until its score it can be committed late
  The time of the charge is end - ttl, at most now.

  Defines  `quotas` and `arg`, the index of the first argument after them;
           `finish_ended`, `live_until`, `replace`, `hold`
]]
-- The maximum number of holds that one call ends without being asked to settle them,
-- but of each key so many: a reservation adds one, which ends twice, the second time as
-- `late`. So the holds of a key do not accumulate, however many keys a call has.
local MAX_ENDED, MIN_ENDED = 64, 3

local quotas, arg = {}, 2
for q = 1, ARGV[1] + 0 do
  local afford, charge, give_back = algorithms[ARGV[arg]](arg + 1)
  quotas[q] = { afford = afford, charge = charge, give_back = give_back, algorithm = ARGV[arg], arg = arg + 1 }
  arg = arg + 5
end

-- Returns the stamp by which units that were charged at `at` are refunded: the end of
-- their window if it is fixed, 0 if the state counts another window. `found` is the end
-- of its window (ms), and `ends` that end after a step back of the clock.
local function stamp_of(quota, at, ends, found)
  if quota.algorithm ~= 'fixed_window' then return at end
  local window, begins = ARGV[quota.arg + 1] + 0, math.min(at, now)
  -- A window that is not aligned begins in the millisecond of its first charge.
  begins = begins - begins % 1000
  if ARGV[quota.arg + 2] == '1' then begins = begins - (begins - ARGV[quota.arg + 3]) % window end
  return found and math.ceil((begins + window) / 1000) >= ends and found * 1000 or 0
end

-- Removes a member of the holds at `key`, and refunds its units (charged at `at`), or
-- charges them without a check if `units` is below 0. Reads the state first: if that
-- fails, nothing changes. Then writes first what can fail for lack of memory.
local function replace(quota, state, key, member, units, at, late, late_until)
  local _, blocked, ahead, a, b, c, d, e
  if units ~= 0 then _, blocked, ahead, a, b, c, d, e = quota.afford(state, 0, 1, '') end
  if late then call('ZADD', key, late_until, late) end
  call('ZREM', key, member)
  if units > 0 then
    quota.give_back(state, units, stamp_of(quota, at, b, d), blocked, ahead, a, b, c, d, e)
  elseif units < 0 then
    quota.charge(state, 1, 1, 1, -units, blocked, ahead, a, b, c, d, e)
  end
end

-- Ends one hold, whose end has come.
local function finish(quota, state, key, member, score)
  local name, units, ttl, what = match(member, '^(.*:(%d+):(%d+):)(%l+)$')
  local ends = integer(score)
  units, ttl = integer(units), integer(ttl)
  if not (units and ttl and ends and (what == 'keep' or what == 'back' or what == 'late')) then
    error('STATE holds', 0)
  end
  local returned = what == 'back' and units or 0
  if what == 'late' then
    -- A hold of the same id that ended in this call may have written `late` again.
    if call('ZSCORE', key, member) == score then call('ZREM', key, member) end
  elseif ends + ttl <= now then
    replace(quota, state, key, member, returned, ends - ttl)
  else
    replace(quota, state, key, member, returned, ends - ttl, name .. 'late', format(WHOLE, ends + ttl))
  end
end

-- Ends the first holds whose end has come, in order.
local ended = 0
local function finish_ended(quota, state, key)
  local most = format(WHOLE, math.max(MAX_ENDED - ended, MIN_ENDED))
  local found = call('ZRANGEBYSCORE', key, '-inf', stamp, 'WITHSCORES', 'LIMIT', '0', most)
  for i = 1, #found, 2 do
    ended = ended + 1
    finish(quota, state, key, found[i], found[i + 1])
  end
end

-- Returns the end of a hold (us), or nil if there is none. Ends it if its end has come:
-- `finish_ended` ends only some.
local function live_until(quota, state, key, member)
  local score = call('ZSCORE', key, member)
  if not score then return end
  local ends = integer(score)
  if not ends then error('STATE holds', 0) end
  if ends > now then return ends end
  finish(quota, state, key, member, score)
end

-- Returns for how long the units of one charge can count (us).
local function life(quota)
  local first = quota.arg
  if quota.algorithm == 'token_bucket' or quota.algorithm == 'leaky_bucket' then
    return math.ceil(ARGV[first] * ARGV[first + 2] / ARGV[first + 1])
  end
  local window = ARGV[first + 1] + 0
  if quota.algorithm == 'sliding_counter' then return 2 * window end
  return quota.algorithm == 'fixed_window' and window + 1000 or window
end

-- Adds a hold that lasts for `ttl` (us). The zset expires when no hold in it can be
-- settled or refunded. Expiries are rounded up to steps, so that few charges write one.
-- They are kept in `quota`: the reservations of a call have mostly the same ttl.
local function hold(quota, key, member, ttl, what)
  if quota.ttl ~= ttl or quota.what ~= what then
    local span = what == 'back' and math.max(2 * ttl, life(quota)) or 2 * ttl
    local step, needed = math.floor(span / 8) + 1, now + span
    quota.ttl, quota.what, quota.ends = ttl, what, format(WHOLE, now + ttl)
    quota.expires = math.ceil((needed + -needed % step) / 1000)
  end
  call('ZADD', key, quota.ends, member)
  if call('PEXPIRETIME', key) < quota.expires then call('PEXPIREAT', key, format(WHOLE, quota.expires)) end
end
