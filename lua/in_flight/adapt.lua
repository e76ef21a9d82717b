--[[
  adapt: changes the adaptive limit of a key, which follows the latency of the
  operations. See src/quota/reference/adapt.rs, which computes the same to the bit: all
  numbers are doubles, with the same operations in the same order.

  KEYS     hash: limit, with its fraction; baseline_us, the latency without a queue;
           started_us, when the window began; of the window: operations, busy_us,
           overloads, peak, ended_ms, squares; of a probe: resume, lowest_us; highest,
           ceiling, windows
  ARGV     min, max, tolerance; the report of a process: operations, busy_us,
           overloads, peak, ended_ms, squares
  Returns  {now, the time until the next report (us), the fields in the order of
           FIELDS}, or an error string. `STATE limit`: the field of that name is not a
           number that tidegate writes
  Writes   HSET; PEXPIREAT: an unused key expires after 10 minutes or 8 windows
]]
local WINDOW, DURATIONS, LATENCIES, REPORTING, MIN_OPERATIONS = 1000000, 2, 64, 0.125, 50
local USED, OVERLOADED, WINDOWS_PER_PROBE = 0.8, 0.01, 48
local RISEN, FALLEN, CONFIRMED, DEEPER = 1.25, 0.9, 1.1, 0.7
local KEPT = 600000000
-- Above all numbers that it writes, except squares. Below it, no sum is infinite.
local LARGEST = 2 ^ 200
local FIELDS = {
  'limit', 'baseline_us', 'started_us', 'operations', 'busy_us', 'overloads', 'peak',
  'ended_ms', 'squares', 'resume', 'lowest_us', 'highest', 'ceiling', 'windows',
}
local key, max, min = KEYS[1], math.max, math.min
local min_limit, max_limit, tolerance = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0

-- Returns the nearest limit within the bounds.
local function within(limit)
  return min(max(limit, min_limit), max_limit)
end

-- Returns the state; that of an unused key if there is none.
local function read()
  local texts, state = call('HMGET', key, unpack(FIELDS)), {}
  if not texts[1] then
    for i = 1, #FIELDS do state[FIELDS[i]] = 0 end
    state.limit, state.highest, state.started_us, state.windows = min_limit, min_limit, now, WINDOWS_PER_PROBE
    return state
  end
  for i = 1, #FIELDS do
    local value = texts[i] and tonumber(texts[i])
    -- NaN fails every comparison.
    if not (value and value >= 0 and value <= LARGEST) then error('STATE ' .. FIELDS[i], 0) end
    state[FIELDS[i]] = value
  end
  return state
end

-- Returns the latency in the window (us); 0 if it is unknown.
local function latency_of(state)
  return state.operations > 0 and state.busy_us / state.operations or 0
end

-- Halves the units in flight, unless the lower bound is too near.
local function begin_probe(state, latency)
  local used = min(state.limit, state.peak)
  local level = within(used / 2)
  if level <= DEEPER * used then
    state.resume, state.lowest_us, state.limit = state.limit, latency, level
  end
end

-- Ends a window of a probe: halves the limit again, or ends the probe.
local function end_level(state, latency)
  local has_fallen = false
  if latency > 0 then
    local is_confirmed = latency > FALLEN * state.baseline_us and latency < CONFIRMED * state.baseline_us
    has_fallen = latency < FALLEN * state.lowest_us and not is_confirmed
    state.lowest_us = min(state.lowest_us, latency)
  end
  local level = within(state.limit / 2)
  if has_fallen and level <= DEEPER * state.limit then
    state.limit = level
    return
  end
  -- Where the latency still falls at the lower bound, it is that of a queue.
  if not has_fallen or state.lowest_us < state.baseline_us then state.baseline_us = state.lowest_us end
  state.limit, state.resume = within(state.resume), 0
  state.highest, state.windows = state.limit, WINDOWS_PER_PROBE + now % 25
end

local function end_window(state, age)
  local latency = latency_of(state)
  if state.resume > 0 then return end_level(state, latency) end
  local limit = state.limit
  local target = limit
  if latency > 0 then
    if state.baseline_us == 0 then
      state.baseline_us = latency
    elseif latency < state.baseline_us then
      state.baseline_us = state.baseline_us + (latency - state.baseline_us) / 2
    end
    target = (tolerance * limit + math.sqrt(limit)) * state.baseline_us / latency
  end
  local is_overloaded = state.overloads >= OVERLOADED * (state.operations + state.overloads)
  if is_overloaded then target = min(target, 0.95 * min(state.busy_us / age, limit)) end
  target = min(max(target, limit / 2), limit * 2)
  if is_overloaded then
    state.ceiling = target
  elseif limit > 2 * state.ceiling then
    state.ceiling = 0
  else
    target = min(target, max(state.ceiling, limit + math.sqrt(limit) / 2))
  end
  if target > limit and state.peak < USED * math.floor(limit) then target = limit end
  state.limit = within(target)
  state.highest = max(state.highest, state.limit)
  state.windows = max(state.windows - 1, 0)
  local has_risen = latency > RISEN * state.baseline_us
  if has_risen and (state.windows == 0 or state.limit <= state.highest / 2) then begin_probe(state, latency) end
end

-- Adds the report, and ends the window if it is over. Returns the time until the next
-- report, and the length of the window (us).
local function report(state)
  state.operations = state.operations + ARGV[4]
  state.busy_us = state.busy_us + ARGV[5]
  state.overloads = state.overloads + ARGV[6]
  state.peak = max(state.peak, ARGV[7] + 0)
  state.ended_ms = state.ended_ms + ARGV[8]
  state.squares = state.squares + ARGV[9]
  if state.started_us > now then state.started_us = now end
  local duration = state.ended_ms > 0 and state.squares / state.ended_ms * 1000 or 0
  local window = max(WINDOW, min(DURATIONS * duration, LATENCIES * latency_of(state)))
  local reported, age = window + window * REPORTING, now - state.started_us
  if age < window then return math.ceil(min(window - age, WINDOW)), window end
  if age < reported then return math.ceil(min(reported - age, WINDOW)), window end
  if state.operations + state.overloads < MIN_OPERATIONS then return WINDOW, window end
  end_window(state, age)
  state.started_us, state.operations, state.busy_us, state.overloads = now, 0, 0, 0
  state.peak, state.ended_ms, state.squares = 0, 0, 0
  return WINDOW, window
end

local reply = { now, 0 }
local failed = failure(function()
  local state, window = read(), nil
  reply[2], window = report(state)
  local written = {}
  for i = 1, #FIELDS do
    local text = format('%.17g', state[FIELDS[i]])
    written[2 * i - 1], written[2 * i], reply[i + 2] = FIELDS[i], text, text
  end
  call('HSET', key, unpack(written))
  -- At most a year: the sum stays exact.
  expire(key, now + max(KEPT, min(8 * window, 31536000000000)), 0)
end)
return failed or reply
