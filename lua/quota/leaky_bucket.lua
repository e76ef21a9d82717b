--[[
  leaky_bucket: a token bucket used as a queue. The level is the work that waits.
  An admitted check waits until the work before it has drained. A check that would
  wait longer than it accepts is denied, and adds nothing to the queue.

  KEYS     hash: used, as token_bucket
  ARGV     quota: queue, rate, per, 1
  State    ticks used
  Writes   as token_bucket
]]
local function leaky_bucket(arg)
  local rate, per = ARGV[arg + 1] + 0, ARGV[arg + 2] + 0
  local afford, charge, give_back, room = token_bucket(arg)

  local function afford_in_time(key, n, cost, max_delay)
    local own, blocked, ahead, ticks, _, _, expiry_step = afford(key, n, cost)
    if max_delay ~= '' and own > 0 and cost > 0 then
      local last = max_delay * rate - ticks
      own = last < 0 and 0 or math.min(own, math.floor(last / (cost * per)) + 1)
    end
    return own, blocked, ahead, ticks, nil, nil, expiry_step
  end

  return afford_in_time, charge, give_back, room
end
