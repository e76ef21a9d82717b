--[[
  outbox: the changes of this region that wait for the next flush, and the counts of
  units that do not count as they should.

  Defines  `outbox` and `counts`, the first two keys of every script of regions;
           `algorithms`, a table that the algorithms fill; `quota_at`, `quotas_at`,
           `field_of`, `send`
]]
local outbox, counts = KEYS[1], KEYS[2]
local algorithms

-- Returns the quota at this index of ARGV: algorithm, 4 numbers (see the algorithm),
-- debt, 1 if units above the limit are carried over. `mode` holds all of it, because
-- a peer may not know the gate. `cut`: see share.
local function quota_at(arg, cut)
  local quota = { mode = table.concat(ARGV, ',', arg, arg + 6), is_log = ARGV[arg] == 'sliding_log' }
  quota.most = ARGV[arg + 1] + ARGV[arg + 5]
  -- The ticks of a unit: 1, except for levels.
  quota.per = math.max(1, ARGV[arg + 3])
  quota.afford, quota.charge, quota.give_back, quota.room, quota.apply =
    algorithms[ARGV[arg]](arg + 1, ARGV[arg + 5] + 0, ARGV[arg + 6] == '1', cut)
  return quota
end

-- Returns the quotas at this index of ARGV, or their shares, and the index after them:
-- their number, then each quota. `make` is `quota_at` or `share_at`.
local function quotas_at(arg, make)
  local quotas, number = {}, ARGV[arg] + 0
  for q = 1, number do quotas[q] = make(arg + 7 * q - 6) end
  return quotas, arg + 7 * number + 1
end

-- Returns the field of a change. Equal fields coalesce. `name` is the start of the
-- window; 0 of levels and logs, whose units count from their arrival.
local function field_of(verb, quota, name, key)
  return verb .. ' ' .. quota.mode .. ' ' .. format(WHOLE, name) .. ' ' .. key
end

local function send(quota, name, key, units)
  if units ~= 0 then
    call('HINCRBY', outbox, field_of('charge', quota, name, key), format(WHOLE, units))
  end
end
