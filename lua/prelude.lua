--[[
  prelude: shared by algorithms and verbs: numbers, expiry, failures, and the
  contract between the two.

  Defines  `stamp` of any build, `WHOLE`, `integer`, `expire`, `failure`

  Each algorithm file defines a function that takes the index of its quota in
  ARGV and returns the four functions below. They raise errors: see `failure`.

    afford(key, n, cost, max_delay)
        -> how many of n checks its limit alone admits, blocked_until,
           whether the state is dated in the future, state (1 to 3 numbers, nil
           for the others), and up to two values that charge would otherwise
           read or compute again
    charge(key, n, own, k, cost, blocked, ahead, state..., the two values)
        charges k of n checks, of which `own` could be afforded; with k = 0,
        makes the writes that a denial permits; writes the state even unchanged
        if `ahead` is true
        -> the third number of state if it depends on the state after the
           charge, and the stamp by which a refund returns the units; nil: now
    give_back(key, units, stamp, blocked, ahead, state..., the two values)
        returns the units charged at `stamp` that still count. `stamp` is the
        server's time of that take (us), or the end of a fixed window; nil: now
    room(most, state...)
        -> how many whole units can be charged until `most` units are used
]]

-- 2^53. Doubles hold every integer up to this one, so sums below it are exact.
local EXACT = 9007199254740992

-- Formats an integer. `%d` takes half as long as `%.0f`, but holds only 32 bits
-- in a 32-bit build of Redis.
local IS_64_BIT = stamp + 0 == now
local WHOLE = IS_64_BIT and '%d' or '%.0f'
if not IS_64_BIT then stamp = format(WHOLE, now) end

-- Returns the integer if tidegate could have stored it, else nil. NaN fails every
-- comparison. Raises for text that is no number: match a pattern first.
local function integer(text)
  local value = text and text + 0
  if value and value >= 0 and value <= EXACT and value % 1 == 0 then return value end
end

-- Sets the key's expiry to the later of a time (us) and the end of its block. The
-- expiry is absolute because a relative one would start at a second reading of
-- the clock. It is rounded up because Redis removes a key at once if its expiry is
-- in a millisecond that has begun.
local function expire(key, needed_until, blocked)
  local at = math.max(needed_until, blocked, now + 1)
  call('PEXPIREAT', key, format(WHOLE, math.ceil(at / 1000)))
end

-- Runs a function that raises for corrupt state or for a command that Redis
-- rejects. Returns nil, or the error. Errors of Redis and tidegate begin with a
-- word in capitals. An error of Lua means that a text is not the number it should
-- be.
local function failure(run, ...)
  local is_done, raised = pcall(run, ...)
  if not is_done then return string.find(raised, '^%u+ ') and raised or 'STATE used' end
end
