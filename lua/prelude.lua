--[[
  prelude: what algorithms and verbs have in common: numbers, expiry, failures,
  and the contract between the two.

  Promises  `stamp` of any build, `WHOLE`, `integer`, `expire`, `failure`

  What an algorithm's file defines is a function of the place of its quota in
  ARGV that returns three. They raise what fails: see `failure`.

    afford(key, n, cost, max_delay)
        -> how many of n asks its limit alone admits, blocked_until,
           whether the state is dated in the future, state (1 to 3 numbers, nil
           in the place of others), and up to two more that charge would have to
           find out again
    charge(key, n, own, k, cost, blocked, ahead, state..., the two)
        charges k of n asks, of which `own` could be afforded; with k = 0 does
        what a denial may do; writes the state as it is where `ahead` is true
        -> the third number of state where only the state after tells it, and
           the stamp by which the units are given back; nil means now
    give_back(key, units, stamp, blocked, ahead, state..., the two)
        returns what was charged at `stamp` as far as it still counts. `stamp` is
        the server's time of that take (us), of a fixed window the end of the
        window; nil means now
]]

-- Doubles hold every integer up to here, so sums below it are exact.
local EXACT = 9007199254740992

-- How the text of an integer is made: `%d` takes half as long as `%.0f`, but
-- holds 32 bits where Redis was built for them.
local IS_64_BIT = stamp + 0 == now
local WHOLE = IS_64_BIT and '%d' or '%.0f'
if not IS_64_BIT then stamp = format(WHOLE, now) end

-- An integer that we could have stored, or nil. NaN fails every comparison. Of
-- what can be no number at all, a pattern has to tell before.
local function integer(text)
  local value = text and text + 0
  if value and value >= 0 and value <= EXACT and value % 1 == 0 then return value end
end

-- Lets the key live until a time (us), and as long as it is blocked. By the
-- clock that decided, and rounded up: a relative expiry would count from another
-- reading of it, and one in a millisecond that has begun removes the key at once.
local function expire(key, needed_until, blocked)
  local at = math.max(needed_until, blocked, now + 1)
  call('PEXPIREAT', key, format(WHOLE, math.ceil(at / 1000)))
end

-- Runs what can fail by what a key holds or what Redis refuses -> nil, or what
-- failed. What Redis says, and what we do, begins with a word in capitals; what
-- Lua says is that a text which should be a number is none.
local function failure(run, ...)
  local is_done, raised = pcall(run, ...)
  if not is_done then return string.find(raised, '^%u+ ') and raised or 'STATE used' end
end
