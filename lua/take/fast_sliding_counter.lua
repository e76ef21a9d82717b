--[[
  fast_sliding_counter: the fast path for keys that are new, or whose counts are of
  this window or an earlier one. State and writes are those of sliding_counter.

  Defines  `fast_path` and `done`, see fast_token_bucket
]]
local done = 0

local function fast_path(rows, call, format, now, stamp)
  if #stamp ~= 16 then return end
  local keys, argv, size, find, match, floor = KEYS, ARGV, #rows, string.find, string.match, math.floor
  local limit, window = argv[1] + 0, argv[2] + 0
  local start = now - now % window
  local start_text = format('%d', start)
  local counts = '%d+%d since ' .. start_text
  local expiry

  local n, cost, arg = 1, 1, 5
  local must_read, is_shared = #argv > 6, #argv < 4 + 3 * #keys
  for i = done + 1, #keys do
    if must_read then
      if not is_shared then arg = 2 + 3 * i end
      n, cost = argv[arg] + 0, argv[arg + 1] + 0
      must_read = not is_shared
    end

    local key = keys[i]
    local text, cur, prev, has_expiry = call('HGET', key, 'used'), 0, 0, false
    if text then
      -- Digits only, as in fast_token_bucket.
      local _, last, count, before = find(text, '^(%d+)%+(%d+) since ')
      if not last then return end
      local stored_start = match(text, '^%d+$', last + 1)
      count, before = count + 0, before + 0
      -- At most MAX_UNITS, see sliding_counter.
      if count > 4503599627370496 or before > 4503599627370496 then return end
      if stored_start == start_text then
        cur, prev, has_expiry = count, before, count > 0
      else
        stored_start = stored_start + 0
        if stored_start >= start then return end
        if stored_start + window >= start then prev = count end
      end
    end

    local k, estimate = n, cur + floor(prev * (start + window - now) / window)
    if cost > 0 and estimate + n * cost > limit then k = estimate < limit and floor((limit - estimate) / cost) or 0 end
    if k * cost > 0 then
      call('HSET', key, 'used', format(counts, cur + k * cost, prev))
      if not has_expiry then
        expiry = expiry or format('%d', math.ceil((start + 2 * window) / 1000))
        call('PEXPIREAT', key, expiry)
      end
    end
    if k ~= n then
      size = size + 1
      rows[size] = -1 - k
    end
    rows[size + 1] = cur
    size = size + 2
    rows[size] = prev
    done = i
  end
end
