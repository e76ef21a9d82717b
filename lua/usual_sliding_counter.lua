--[[
  usual_sliding_counter: the fast path for keys that are new, or whose counts are of
  this window or an earlier one. State and writes are those of sliding_counter.

  Promises  `usual` and `done`, see usual_token_bucket
]]
local done = 0

local function usual(rows, call, format, now, stamp)
  if #stamp ~= 16 then return end
  local keys, argv, size, find, match, floor = KEYS, ARGV, #rows, string.find, string.match, math.floor
  local limit, window = argv[1] + 0, argv[2] + 0
  local start = now - now % window
  local start_text = format('%d', start)
  local counts = '%d+%d since ' .. start_text
  local expiry

  local n, cost, arg = 1, 1, 5
  local is_said, alike = #argv > 6, #argv < 4 + 3 * #keys
  for i = done + 1, #keys do
    if is_said then
      if not alike then arg = 2 + 3 * i end
      n, cost = argv[arg] + 0, argv[arg + 1] + 0
      is_said = not alike
    end

    local key = keys[i]
    local text, cur, prev, stands = call('HGET', key, 'used'), 0, 0, false
    if text then
      -- Digits only, as in usual_token_bucket.
      local _, last, count, before = find(text, '^(%d+)%+(%d+) since ')
      if not last then return end
      local begun = match(text, '^%d+$', last + 1)
      count, before = count + 0, before + 0
      -- At most MOST_UNITS, see sliding_counter.
      if count > 4503599627370496 or before > 4503599627370496 then return end
      if begun == start_text then
        cur, prev, stands = count, before, count > 0
      else
        begun = begun + 0
        if begun >= start then return end
        if begun + window >= start then prev = count end
      end
    end

    local k, estimate = n, cur + floor(prev * (start + window - now) / window)
    if cost > 0 and estimate + n * cost > limit then k = estimate < limit and floor((limit - estimate) / cost) or 0 end
    if k * cost > 0 then
      call('HSET', key, 'used', format(counts, cur + k * cost, prev))
      if not stands then
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
