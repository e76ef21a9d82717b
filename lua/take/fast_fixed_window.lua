--[[
  fast_fixed_window: the fast path for keys that are new, or whose text is a count
  of a window that contains now. It calls INCRBY first, and returns units that it
  did not admit with DECRBY. State and writes are those of fixed_window.

  Defines  `fast_path` and `done`, see fast_token_bucket
]]
local done = 0

local function fast_path(rows, call, format, now, stamp)
  if #stamp ~= 16 then return end
  local keys, argv, size, try = KEYS, ARGV, #rows, redis.pcall
  local limit, window = argv[1] + 0, argv[2] + 0
  local at = now - now % 1000
  local earliest, latest = at / 1000 + 1, math.ceil((at + window) / 1000)
  if argv[3] == '1' then
    latest = math.ceil((at - (at - argv[4]) % window + window) / 1000)
    earliest = latest
  end
  local expiry

  local n, cost, units, text, arg = 1, 1, 1, '1', 5
  local must_read, is_shared = #argv > 6, #argv < 4 + 3 * #keys
  for i = done + 1, #keys do
    if must_read then
      if not is_shared then arg = 2 + 3 * i end
      n, cost = argv[arg] + 0, argv[arg + 1] + 0
      units, text = n * cost, argv[arg]
      -- The slow path handles a peek, a cost that always denies (it would leave a
      -- count of 0), and a sum that Lua's doubles may not hold.
      if units == 0 or cost > limit or units > 4503599627370496 then return end
      if cost > 1 then text = n == 1 and argv[arg + 1] or format('%d', units) end
      must_read = not is_shared
    end

    -- Raises if Redis rejects INCRBY: the text of a blocked key, garbage, no
    -- memory, a replica. The slow path then reads the key first.
    local key = keys[i]
    local after = try('INCRBY', key, text) + 0
    local used, ends = after - units, latest
    if used ~= 0 then
      ends = call('PEXPIRETIME', key)
      if not (ends >= earliest and ends <= latest and used > 0 and after <= 9007199254740992) then
        call('DECRBY', key, text)
        return
      end
    end

    local k = n
    if after > limit then
      k = used < limit and math.floor((limit - used) / cost) or 0
      call('DECRBY', key, k == 0 and text or format('%d', (n - k) * cost))
    end
    -- PEXPIREAT comes last: it removes a key whose window has ended in the
    -- meantime, and a later DECRBY would create a key that never expires.
    if used == 0 then
      expiry = expiry or format('%d', latest)
      call('PEXPIREAT', key, expiry)
    end
    if k ~= n then
      size = size + 1
      rows[size] = -1 - k
    end
    rows[size + 1] = used
    size = size + 2
    rows[size] = ends
    done = i
  end
end
