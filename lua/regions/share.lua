--[[
  share: the second state of a key, which decides too while a peer is cut off: the
  units that this region admits, each counted once per region, so that all regions
  together admit one limit. Nothing is available at the cut: the used units are at
  least those that a limit used at the cut leaves now. So a denied check writes
  nothing, and a share goes on when the first of two cuts ends.

  KEYS     the share of each item: see the algorithm. Windows have no debt and no carry
  ARGV     local time of the cut (us), '' if no peer is cut off; number of regions
  Defines  `cut`; `share_at`
]]
local cut = ARGV[1] ~= '' and math.min(ARGV[1], now)

-- Returns the share of the quota at this index of ARGV, as `quota_at` does the quota.
-- `windows` itself raises the counts of the window of the cut.
local function share_at(arg)
  local share, regions = quota_at(arg, cut), ARGV[2]
  local afford, charge, limit = share.afford, share.charge, ARGV[arg + 1] + 0
  -- A log admits nothing until the units of the cut have left.
  local is_closed = share.is_log and cut + ARGV[arg + 2] > now

  -- Returns how many checks a level affords, and its ticks.
  local function raise_level(own, ticks, cost, max_delay)
    local rate = ARGV[arg + 2]
    ticks = math.max(ticks, limit * share.per - rate * (now - cut))
    own = math.min(own, math.floor(share.room(limit, ticks) / cost))
    if ARGV[arg] == 'leaky_bucket' and max_delay ~= '' then
      own = math.min(own, math.floor((max_delay * rate - ticks) / (cost * share.per)) + 1)
    end
    return math.max(0, own), ticks
  end

  function share.afford(key, n, cost, max_delay)
    local units = cost * regions
    cost = math.min(units, limit)
    local own, blocked, ahead, a, b, c, d, e = afford(key, n, cost, max_delay)
    if is_closed then
      c = math.max(cut, charge(key, 0, 0, 0, cost, blocked, ahead, a, b, c, d, e))
      own, a, b = 0, math.max(a, limit), math.max(b, cut)
    elseif not (share.is_log or share.apply) then
      own, a = raise_level(own, a, cost, max_delay)
    end
    if cost == 0 then own = n elseif units > limit then own = 0 end
    return own, blocked, ahead, a, b, c, d, e
  end

  -- Denied checks do not change a share.
  function share.charge(key, _, own, k, cost, ...)
    if not is_closed then return charge(key, k, own, k, math.min(cost * regions, limit), ...) end
  end
  return share
end
