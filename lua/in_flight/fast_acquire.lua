--[[
  fast_acquire: the fast path for messages of a live holder about keys that are new,
  or whose count is known without a scan. State and writes are those of in_flight.

  Defines  `fast_path` and `done`, see fast_token_bucket. The slow path handles
           peeks, lapsed senders, messages that were processed before, blocked keys,
           steps back of the clock, and a change of times alone
]]
local done = 0

local function fast_path(rows, call, format, now, stamp)
  -- With stamps of 16 digits, `held` is split at fixed offsets, and times are compared
  -- as texts.
  if #stamp ~= 16 then return end
  local keys, argv, size, sub, find, match = KEYS, ARGV, #rows, string.sub, string.find, string.match
  local name, ttl = argv[1], match(argv[1], '/(%d+)$')
  if not ttl or argv[2] + 0 <= now then return end
  local key = keys[1]
  local lapse, latest = call('ZSCORE', key, name), now + ttl * 1000
  lapse = lapse and lapse + 0
  if not lapse or lapse <= now or lapse > latest then return end
  local limit = argv[3] + 0
  local between = '/' .. argv[3] .. ' at '
  local offset = -44 - #between
  -- The last end of a text, with its `sure until`; and the earlier of that and the sender's
  -- lapse, with the end of the text to write.
  local known_tail, known, sure, ending = false, nil, nil, nil
  -- See KEPT in in_flight.
  local quarter, expiry = format('%d', now - now % 900000000), nil

  local n, cost, arg = 1, 1, 2 * #keys + 2
  -- The units of the last entry written, and its text up to the number: keys often have
  -- equal units.
  local last_units, units_text = nil, nil
  local must_read, is_shared = #argv >= arg, #argv < arg + 2
  for i = done + 1, #keys - 1 do
    if must_read then
      if not is_shared then arg = 2 * #keys + 2 * i end
      n, cost = argv[arg] + 0, argv[arg + 1] + 0
      must_read = not is_shared
    end

    key = keys[i + 1]
    local found = call('HMGET', key, 'held', name)
    local text, entry, number, keep = found[1], found[2], argv[2 * i + 2], argv[2 * i + 3] + 0
    local held, own, tail, at = 0, 0, nil, nil
    if text then
      local first = find(text, between, offset, true)
      tail, at = sub(text, -28), match(text, '^%d+', -44)
      if not first or find(text, '%D') ~= first or #at ~= 16 or at > stamp then return end
      held = sub(text, 1, first - 1) + 0
      if held > 1e15 then return end
      if entry then
        local units, last = match(entry, '^(%d+) #(%d+)$')
        -- Texts of equal lengths compare as their numbers do.
        if (#last ~= #number or last >= number) and last + 0 >= number + 0 then return end
        own = units + 0
        if own > held then return end
      end
    elseif entry then
      return
    end
    if tail ~= known_tail then
      known = tail and match(tail, '^ sure until (%d+)$') or not tail and lapse
      if not known then return end
      known_tail, known = tail, known + 0
      sure = known < lapse and known or lapse
      ending = between .. stamp .. ' sure until ' .. format('%d', sure)
    end
    local is_sure = known > now and known <= latest
    if not is_sure then
      -- Without other holders, nothing has lapsed.
      if held ~= own then return end
      known_tail, sure = false, lapse
      ending = between .. stamp .. ' sure until ' .. format('%d', sure)
    end

    held = held - own + keep
    local k = n
    if cost > 0 and held + n * cost > limit then
      k = held < limit and math.floor((limit - held) / cost) or 0
    end
    local units = keep + k * cost
    if k > 0 or units ~= own then
      local after = held + k * cost
      if after == 0 then
        if text then call('UNLINK', key) end
      else
        if units > 0 then
          if units ~= last_units then last_units, units_text = units, format('%d #', units) end
          call('HSET', key, 'held', format('%d', after) .. ending, name, units_text .. number)
        else
          call('HSET', key, 'held', format('%d', after) .. ending)
          call('HDEL', key, name)
        end
        if not at or at < quarter then
          expiry = expiry or format('%d', (quarter + 4500000000) / 1000)
          call('PEXPIREAT', key, expiry)
        end
      end
    elseif units > 0 and (now - at >= 900000000 or not is_sure) then
      return
    end
    if k ~= n then
      size = size + 1
      rows[size] = -1 - k
    end
    rows[size + 1] = held
    size = size + 2
    rows[size] = sure
    done = i
  end
end
