--[[
  apply: applies changes of a peer exactly once, by any number of callers.

  KEYS     outbox, counts, cursor, heard; then the state of each change
  ARGV     the cursor that the caller expects ('' if none), the cursor after these
           changes, name of the peer, the server's time before the read (us), the
           longest time since then (us), 1 if these are all changes that the peer had;
           quotas (see outbox); then per change: verb, quota (from 1), name of the
           window, amount
  Returns  {now, 1}, then for each change that failed its number and the error; or
           {now, 0, cursor} if another cursor is stored, or the read is too old
  Writes   SET of the cursor first: without memory it fails, and nothing has changed;
           HSET of `heard`; the states, see the algorithms
]]
local cursor, heard = KEYS[3], KEYS[4]
local stored, read = call('GET', cursor) or '', ARGV[4] + 0
if stored ~= ARGV[1] or now - read > ARGV[5] + 0 then return { now, 0, stored } end
call('SET', cursor, ARGV[2])
if ARGV[6] == '1' then
  local before = call('HGET', heard, ARGV[3]) or 0
  call('HSET', heard, ARGV[3], format(WHOLE, math.max(read, math.min(before, now))))
end

local reply, quotas, arg = { now, 1 }, quotas_at(7, quota_at)

local function charge(quota, key, name, units)
  if quota.apply then return quota.apply(key, name, units) end
  local _, blocked, ahead, a, b, c, d, e = quota.afford(key, 0, 1, '')
  if units < 0 then return quota.give_back(key, -units, nil, blocked, ahead, a, b, c, d, e) end
  local counted = math.min(units, quota.room(quota.most, a, b))
  quota.charge(key, 1, 1, counted, 1, blocked, ahead, a, b, c, d, e)
  count('forgiven', units - counted)
end

-- Of two blocks, the later one wins.
local function block(quota, key, _, duration)
  local _, blocked = quota.afford(key, 0, 1, '')
  local ends = duration > 0 and math.min(now + duration, EXACT) or 0
  if ends == 0 or ends > blocked then set_block(quota, key, ends) end
end

local function reset(_, key)
  clear(key)
end

local verbs = { charge = charge, block = block, reset = reset }

for i = 5, #KEYS do
  local failed = failure(verbs[ARGV[arg]], quotas[ARGV[arg + 1] + 0], KEYS[i], ARGV[arg + 2] + 0, ARGV[arg + 3] + 0)
  if failed then
    reply[#reply + 1] = i - 4
    reply[#reply + 1] = failed
  end
  arg = arg + 4
end
return reply
