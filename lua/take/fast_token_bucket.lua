--[[
  fast_token_bucket: the fast path for keys that are new, or whose level this
  version of the quota wrote. State and writes are those of token_bucket. It is one
  loop because creating a function costs each call about a thousand instructions,
  and calling one costs a twentieth of the whole work per key.

  Defines  `fast_path`, which appends a row per key, from the first key without one
           to the first key for the slow path: a blocked key, a level that another
           version wrote or that lies in the future, or a raised error
           `done`, the number of keys with a row
]]
local done = 0

local function fast_path(rows, call, format, now, stamp)
  -- With stamps of 16 digits, a level is split at a fixed offset, which takes half as
  -- long as a pattern.
  if #stamp ~= 16 then return end
  local keys, argv, size, sub, find, match = KEYS, ARGV, #rows, string.sub, string.find, string.match
  local capacity, rate, per = argv[1] + 0, argv[2] + 0, argv[3] + 0
  local full, is_queue = capacity * per, argv[4] == '1'
  local step = math.floor(full / rate / 8) + 1
  local between = '/' .. argv[3] .. ' of ' .. argv[1] .. ', ' .. argv[2] .. '/us at '
  local offset = -16 - #between
  local level = '%d' .. between .. stamp
  local last_begin, last_expiry

  local n, cost, max_delay, arg = 1, 1, '', 5
  local must_read, is_shared = #argv > 6, #argv < 4 + 3 * #keys
  for i = done + 1, #keys do
    if must_read then
      if not is_shared then arg = 2 + 3 * i end
      -- Adding 0 converts to a number without a function call.
      n, cost, max_delay = argv[arg] + 0, argv[arg + 1] + 0, argv[arg + 2]
      must_read = not is_shared
    end

    local key = keys[i]
    local text, ticks, expiry_step = call('HGET', key, 'used'), 0, nil
    if text then
      local first, last = find(text, between, offset, true)
      -- Digits only: Lua reads `0x10`, `1e3` and ` 16` as numbers, too.
      if not first or find(text, '%D') ~= first then return end
      local at = match(text, '^%d+$', last + 1) + 0
      ticks = sub(text, 1, first - 1) + 0
      -- At most MAX_TICKS, see token_bucket.
      if at > now or ticks > 562949953421312 then return end
      -- The step in which the level will be empty, which determines the expiry.
      local empty = at + (ticks + -ticks % rate) / rate
      expiry_step = empty - empty % step
      ticks = ticks - (now - at) * rate
      if ticks < 0 then ticks = 0 end
    end

    local k, unit = n, cost * per
    if cost > 0 and ticks + n * unit > full then
      k = ticks < full and math.floor((full - ticks) / unit) or 0
    end
    if is_queue and cost > 0 and max_delay ~= '' then
      local last = max_delay * rate - ticks
      k = last < 0 and 0 or math.min(k, math.floor(last / unit) + 1)
    end
    if k * cost > 0 then
      local after = ticks + k * unit
      call('HSET', key, 'used', format(level, after))
      local empty = now + (after + -after % rate) / rate
      local begin = empty - empty % step
      if begin ~= expiry_step then
        if begin ~= last_begin then
          last_begin, last_expiry = begin, format('%d', math.ceil((begin + step) / 1000))
        end
        call('PEXPIREAT', key, last_expiry)
      end
    end
    if k ~= n then
      size = size + 1
      rows[size] = -1 - k
    end
    size = size + 1
    rows[size] = ticks
    done = i
  end
end
