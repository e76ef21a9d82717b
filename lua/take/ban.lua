--[[
  ban: checks against several limits, all or nothing, where at least one key is of a
  gate with a ban; many groups in one call. Decides and charges as group does. Then
  counts the checks that each key with a ban denied itself: those that only others in
  the group denied, and those that a block denied, do not count. When the count
  reaches `after`, the key is blocked for `lasts`, and the count starts anew.

  KEYS     per item, group after group: its state; then its count of denials, if it
           has a ban: a string such as `3`, which expires `within` after the first
           denial that it counts
  ARGV     q, the number of quotas; then q times: algorithm, 4 numbers (see the
           algorithm); then b, the number of bans; then b times: after, within (us),
           lasts (us); then per group: n, number of items, 1 if it is a partial
           grant, else 0; and per item: quota (from 1), cost, longest accepted delay
           (us, '' for any), ban (from 1; 0: none)
  Returns  {now, group, group, ...}, flat. A group is -1 - k, then per item the state
           as in a row of take, then r, the number of items whose ban begins now, and
           r numbers of items (from 1). A group that failed is one string: the number
           of the item that failed (from 1), and the error. The other groups are
           processed
  Writes   see the algorithms and block; INCRBY of the count, or SET and PEXPIREAT of
           its first denial, or UNLINK when the ban begins. A group reads all its
           items and counts before it writes one
]]
local reply, next_key, item = { now }, 1, nil
local quotas, bans, at = {}, {}, 2
for q = 1, ARGV[1] + 0 do
  local afford, charge = algorithms[ARGV[at]](at + 1)
  quotas[q] = { afford = afford, charge = charge, is_log = ARGV[at] == 'sliding_log' }
  at = at + 5
end
for b = 1, ARGV[at] + 0 do
  bans[b] = { after = ARGV[at + 1] + 0, within = ARGV[at + 2] + 0, lasts = ARGV[at + 3] + 0 }
  at = at + 3
end
local arg = at + 1
-- Of the items of the group in progress. Tables for each group would cost a tenth.
local found, quota_of, states, count_keys, banned_by, counts = {}, {}, {}, {}, {}, {}

-- Returns the number of denials that count, the end of their period (ms), and the expiry
-- of the key, if it keeps them.
local function read_count(key, within)
  local latest = math.ceil((now + within) / 1000)
  local is_read, text = pcall(call, 'GET', key)
  if not is_read and not match(text, '^WRONGTYPE ') then error(text, 0) end
  -- A new count replaces a value that no ban wrote.
  local count = is_read and text and match(text, '^[1-9]%d*$') and integer(text)
  if not count then return 0, latest end
  local ends = call('PEXPIRETIME', key)
  -- Redis keeps a key up to 999 us past its expiry.
  if ends >= 0 and ends * 1000 <= now then return 0, latest end
  -- A period that ends too late for this clock, or never, ends as that of a first denial.
  return count, ends < 0 and latest or math.min(ends, latest), ends
end

local function block(quota, key, ends)
  local _, _, _, a, b, c = quota.afford(key, 0, 1, '')
  if quota.is_log then call('ZADD', key, format(WHOLE, ends), 'block') end
  quota.charge(key, 1, 1, 0, 1, ends, true, a, b, c)
end

-- Adds denials to a count. Returns whether they begin a ban.
local function add(quota, state, key, ban, denied, count, ends, expires)
  if count + denied >= ban.after then
    block(quota, state, now + ban.lasts)
    call('UNLINK', key)
    return true
  end
  if expires == ends then
    call('INCRBY', key, format(WHOLE, denied))
  else
    call('SET', key, format(WHOLE, count + denied))
    call('PEXPIREAT', key, format(WHOLE, ends))
  end
end

-- `item` is the number of the item in progress: the error of a group names it.
local function take(n, items, is_grant)
  local k = n
  for i = 1, items do
    item = i
    local quota, cost = quotas[ARGV[arg] + 0], ARGV[arg + 1] + 0
    quota_of[i], states[i], banned_by[i], next_key = quota, KEYS[next_key], bans[ARGV[arg + 3] + 0], next_key + 1
    if banned_by[i] then
      count_keys[i], next_key = KEYS[next_key], next_key + 1
    end
    found[i] = { cost, quota.afford(states[i], n, cost, ARGV[arg + 2]) }
    k = math.min(k, found[i][2])
    arg = arg + 4
  end
  -- An item that could have admitted one more check denied none of the others.
  local denied = n - k
  -- A partial grant is one check, denied if nothing is granted.
  if is_grant then denied = k == 0 and math.min(n, 1) or 0 end
  for i = 1, items do
    item = i
    local own, blocked, ban = found[i][2], found[i][3], banned_by[i]
    counts[i] = nil
    if ban and denied > 0 and own == k and blocked <= now then
      counts[i] = { quota_of[i], states[i], count_keys[i], ban, denied, read_count(count_keys[i], ban.within) }
    end
  end
  local row = { -1 - k }
  for i = 1, items do
    item = i
    local cost, own, blocked, ahead, a, b, c, d, e = unpack(found[i], 1, 10)
    local after = quota_of[i].charge(states[i], n, own, k, cost, blocked, ahead, a, b, c, d, e)
    row[#row + 1] = blocked > 0 and -1 - a or a
    if blocked > 0 then row[#row + 1] = blocked end
    if b then row[#row + 1] = b end
    if c then row[#row + 1] = after or c end
  end
  local banned = {}
  for i = 1, items do
    -- The checks stay denied if Redis has no memory for the count.
    if counts[i] then
      item = i
      local is_done, begins = pcall(add, unpack(counts[i], 1, 8))
      if not is_done and not match(begins, '^OOM ') then error(begins, 0) end
      if is_done and begins then banned[#banned + 1] = i end
    end
  end
  for i = 1, #row do reply[#reply + 1] = row[i] end
  reply[#reply + 1] = #banned
  for i = 1, #banned do reply[#reply + 1] = banned[i] end
end

while next_key <= #KEYS do
  local n, items, is_grant = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2] == '1'
  arg = arg + 3
  local next_arg, after_keys = arg + 4 * items, next_key + items
  for i = 1, items do
    if ARGV[arg - 1 + 4 * i] ~= '0' then after_keys = after_keys + 1 end
  end
  local failed = failure(take, n, items, is_grant)
  if failed then reply[#reply + 1] = item .. ' ' .. failed end
  next_key, arg = after_keys, next_arg
end
return reply
