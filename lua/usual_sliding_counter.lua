--[[
  usual_sliding_counter: takes from keys that are new, or whose counts are of this
  window or an earlier one. As usual_token_bucket; what sliding_counter says of state
  and writes holds here too.

  Promises  `usual` and `done`, see there
]]
local done = 0

local function usual(rows, call, format, now, stamp)
  if #stamp ~= 16 then return end
  local keys, argv, size, sub, find, ceil = KEYS, ARGV, #rows, string.sub, string.find, math.ceil
  local limit, window = argv[1] + 0, argv[2] + 0
  local start = now - now % window
  local since_start = format(' since %d', start)
  local counts = '%d+%d' .. since_start
  local most = math.floor(4503599627370496 / window)
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
      local plus, since, last = find(text, '+', 1, true), find(text, ' since ', -23, true)
      if not (plus and since) then return end
      local count, before = sub(text, 1, plus - 1) + 0, sub(text, plus + 1, since - 1) + 0
      if not (count >= 0 and before >= 0 and count <= most and before <= most and count % 1 + before % 1 == 0) then
        return
      end
      if find(text, since_start, since, true) then
        cur, prev, stands = count, before, count > 0
      else
        local begun = sub(text, last + 1) + 0
        if not (begun >= 0 and begun < start and begun % 1 == 0) then return end
        if begun + window >= start then prev = count end
      end
    end

    local k, estimate = n, cur + prev - ceil(prev * (now - start) / window)
    if cost > 0 and estimate + n * cost > limit then k = estimate < limit and math.floor((limit - estimate) / cost) or 0 end
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
