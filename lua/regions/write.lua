--[[
  write: changes a key without a check, and sends the change to the other regions.
  A reset and the lifting of a block follow the pending changes of the key at once,
  which keeps the order of one region.

  KEYS     outbox, counts, stream, epoch; the state
  ARGV     quota (see outbox); then `penalize` and units; or `refund`, units and stamp
           (us; '': now); or `block` and duration (us, 0 lifts the block); or `reset`;
           then the text of a new epoch
  Returns  {now}, after a penalty also the stamp of a refund if it is not now; or an
           error string
  Writes   the state, see the algorithm; HINCRBY or HSET of the outbox; a reset and
           the lifting of a block: HDEL of the outbox, SET of a missing epoch, XADD
]]
local quota, key, verb = quota_at(1), KEYS[5], ARGV[8]
local amount = tonumber(ARGV[9])
local reply = { now }

-- Moves the charges of the key that wait into the stream, then the change. A block
-- that waits is over. Older windows than the previous one keep waiting: their
-- charges count nowhere.
local function send_now(last)
  local names = { 0 }
  if quota.apply then
    local _, _, _, _, _, _, w = quota.afford(key, 0, 1)
    names = { w.start - ARGV[3], w.start, w.start + ARGV[3] }
  end
  local changes = {}
  begin_epoch(ARGV[#ARGV])
  for _, name in ipairs(names) do
    local field = field_of('charge', quota, name, key)
    local units = call('HGET', outbox, field) or '0'
    if units ~= '0' then
      changes[#changes + 1] = field
      changes[#changes + 1] = units
    end
    call('HDEL', outbox, field)
  end
  call('HDEL', outbox, field_of('block', quota, 0, key))
  changes[#changes + 1] = field_of(last, quota, 0, key)
  changes[#changes + 1] = '0'
  append(changes)
end

local function penalize()
  local _, blocked, ahead, a, b, c, d, e = quota.afford(key, 0, 1, '')
  send(quota, quota.apply and d.start or 0, key, amount)
  local _, stamp = quota.charge(key, 1, 1, 1, amount, blocked, ahead, a, b, c, d, e)
  reply[2] = stamp
end

local function refund()
  local _, blocked, ahead, a, b, c, d, e = quota.afford(key, 0, 1, '')
  local name, back = quota.give_back(key, amount, tonumber(ARGV[10]), blocked, ahead, a, b, c, d, e)
  if not back then
    local _, _, _, left = quota.afford(key, 0, 1, '')
    -- Whole units: the rest of one has drained.
    name, back = 0, math.floor(math.max(0, a - left) / quota.per)
  end
  send(quota, name, key, -back)
end

local function block()
  if amount == 0 then
    send_now('block')
    return set_block(quota, key, 0)
  end
  local field, ends = field_of('block', quota, 0, key), math.min(now + amount, EXACT)
  local before = call('HGET', outbox, field) or 0
  call('HSET', outbox, field, format(WHOLE, math.max(ends, before)))
  set_block(quota, key, ends)
end

local function reset()
  send_now('reset')
  clear(key)
end

local verbs = { penalize = penalize, refund = refund, block = block, reset = reset }

return failure(verbs[verb]) or reply
