--[[
  usual_fixed_window: takes from keys that are new, or whose count is of this window
  or one that is over. As usual_token_bucket; what fixed_window says of state and
  writes holds here too.

  Promises  `usual` and `done`, see there
]]
local done = 0

local function usual(rows, call, format, now, stamp)
  if #stamp ~= 16 then return end
  local keys, argv, size, sub, find = KEYS, ARGV, #rows, string.sub, string.find
  local limit, window, fresh = argv[1] + 0, argv[2] + 0, now
  if argv[3] == '1' then fresh = now - (now - argv[4]) % window end
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
    local text, used, start, stands = call('HGET', key, 'used'), 0, fresh, false
    if text then
      -- Where a block stands behind, 23 characters from the end are too late.
      local first, last = find(text, ' since ', -23, true)
      if not first then return end
      local count, since = sub(text, 1, first - 1) + 0, sub(text, last + 1) + 0
      if not (since <= now and since >= 0 and count >= 0 and count <= 9007199254740992 and count % 1 + since % 1 == 0) then
        return
      end
      stands = count > 0 and since + window > now
      if stands then used, start = count, since end
    end

    local k = n
    if cost > 0 and used + n * cost > limit then k = used < limit and math.floor((limit - used) / cost) or 0 end
    if k * cost > 0 then
      call('HSET', key, 'used', format('%d since %d', used + k * cost, start))
      if not stands then
        expiry = expiry or format('%d', math.ceil((start + window) / 1000))
        call('PEXPIREAT', key, expiry)
      end
    end
    if k ~= n then
      size = size + 1
      rows[size] = -1 - k
    end
    rows[size + 1] = used
    size = size + 2
    rows[size] = start
    done = i
  end
end
