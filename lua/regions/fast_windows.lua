--[[
  fast_windows: the fast path for keys that are new, or whose counts are of this
  window or of the one before, without a debt. State and writes are those of windows.

  Defines  `fast_path` and `done`, see fast_token_bucket. Sets `name`, see take_gate
]]
local done = 0

local function fast_path(rows, call, format, now, stamp)
  if #stamp ~= 16 then return end
  local keys, argv, size, find, match, floor = KEYS, ARGV, #rows, string.find, string.match, math.floor
  local limit, window, is_fixed = argv[1] + 0, argv[2] + 0, argv[3] == '1'
  -- Fixed windows begin with a millisecond.
  local at = is_fixed and now - now % 1000 or now
  local start = at - (at - argv[4]) % window
  name = format('%d', start)
  local current_tail = '+0 since ' .. name .. ' debt 0 after 0'
  local previous_tail = '+0 since ' .. format('%d', start - window) .. ' debt 0 after 0'
  local counts = '%d+%d' .. current_tail
  local ends, expiry = math.ceil((start + window) / 1000), nil

  local n, cost, arg = 1, 1, 5
  local must_read, is_shared = #argv > 6, #argv < 4 + 3 * #keys
  for i = done + 1, #keys do
    if must_read then
      if not is_shared then arg = 2 + 3 * i end
      n, cost = argv[arg] + 0, argv[arg + 1] + 0
      must_read = not is_shared
    end

    local key = keys[i]
    local text, previous, current, has_expiry = call('HGET', key, 'used'), 0, 0, false
    if text then
      local current_at = find(text, current_tail, -#current_tail, true)
      local tail_at = current_at or find(text, previous_tail, -#previous_tail, true)
      local before, count, last = match(text, '^(%d+)%+(%d+)()')
      if not last or last ~= tail_at then return end
      count, before = count + 0, before + 0
      -- A count above the limit is a debt of the next window.
      if count > limit or before > 4503599627370496 then return end
      if current_at then
        previous, current, has_expiry = before, count, count > 0
      else
        previous = count
      end
    end

    local k, used = n, current
    if not is_fixed then used = used + floor(previous * (start + window - now) / window) end
    if cost > 0 and used + n * cost > limit then k = used < limit and floor((limit - used) / cost) or 0 end
    if k * cost > 0 then
      call('HSET', key, 'used', format(counts, previous, current + k * cost))
      if not has_expiry then
        expiry = expiry or format('%d', math.ceil((start + 2 * window) / 1000))
        call('PEXPIREAT', key, expiry)
      end
    end
    if k ~= n then
      size = size + 1
      rows[size] = -1 - k
    end
    rows[size + 1] = current
    size = size + 2
    rows[size] = is_fixed and ends or previous
    done = i
  end
end
