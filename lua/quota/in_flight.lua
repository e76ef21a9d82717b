--[[
  in_flight: counts the units that live holders hold. A holder is a process with a
  lease. Its messages state the units that it holds, not units to add or to remove:
  one lease renews all of them, and a lost message is corrected by the next one.

  KEYS     hash: held, such as
           `7/10 at 1763680467812345 sure until 1763680475000000`: units, limit,
           time of the last write (us; after a step back of the clock, of the
           latest), and the earliest time at which a holder can lapse; if the key
           is blocked, ` blocked until us` follows;
           per holder a field of its name, `4 #17`: its units, and the number of
           the message that set them. Earlier versions kept a field `queue`: it is
           ignored, and removed by the next scan or with the last unit
  ARGV     quota: limit, 0, 0, 0
  State    units held, where those that the sender keeps replace its own;
           the earliest time at which a holder can lapse, including the sender
  Writes   a message that changes the units of its sender, or that finds a write
           older than a quarter of KEPT: HSET, HDEL; PEXPIREAT once per quarter of
           KEPT; UNLINK with the last unit. A denial: nothing, except the result of
           a scan of all holders, which removes lapsed holders with their leases. A
           peek: nothing

  Instead of the longest delay, `afford` takes the index of a message in ARGV (its
  number, and the units to keep). It returns whether the message is repeated instead
  of whether the state is ahead.
]]
local KEPT = 3600000000
local QUARTER = KEPT / 4
local MAX_TTL = 60000000
-- Lua's stack ends at 8,000 values.
local CHUNK = 500

-- Returns when a holder lapses, or 0 if it is not live. After a step back of the
-- clock, a heartbeat shortens its lease to its ttl.
local function lapse_of(name, score, ttl)
  local ends = score and integer(score)
  if not ends or ends <= now then return 0 end
  return math.min(ends, now + (ttl and ttl * 1000 or MAX_TTL))
end

-- `name` is the sender of all messages: '' peeks, nil changes a block. `known_end` is
-- the end of its lease as it knew it.
local function in_flight(arg, holders, name, known_end)
  local limit = ARGV[arg] + 0
  local held_text = WHOLE .. '/' .. ARGV[arg] .. ' at ' .. WHOLE .. ' sure until ' .. WHOLE
  local ttl, lapse = MAX_TTL, 0
  if name and name ~= '' then
    ttl = match(name, '/(%d+)$')
    lapse = lapse_of(name, call('ZSCORE', holders, name), ttl)
    ttl = (ttl or 0) * 1000
  end

  -- `at`: the time in `held`, nil for a new key. A key expires KEPT to 1.25 KEPT after
  -- its last write. Back and forth steps of the clock must not shorten its life: so
  -- that time does not decrease, unless it is too far ahead to be that of a write.
  local function write(key, at, is_block, held, sure, blocked, ...)
    local written = at and at > now and at <= now + KEPT and at or now
    local text, quarter = format(held_text, held, written, sure), written - written % QUARTER
    if blocked > now then text = text .. BLOCKED .. format(WHOLE, blocked) end
    call('HSET', key, 'held', text, ...)
    if is_block or not at or quarter > at then expire(key, quarter + QUARTER + KEPT, blocked) end
  end

  -- Returns the functions that few calls need: creating a function is not cheap.
  local function rare()
    -- Returns the units of live holders, when the first of them lapses, and the names
    -- of the others.
    local function scan(key)
      local fields, names, units = call('HGETALL', key), {}, {}
      local held, sure, lapsed = 0, EXACT, {}
      for i = 1, #fields, 2 do
        if fields[i] == 'queue' then
          lapsed[1] = 'queue'
        elseif fields[i] ~= 'held' then
          names[#names + 1] = fields[i]
          units[#names] = integer(match(fields[i + 1], '^(%d+) #%d+$'))
          if not units[#names] then error('STATE holder', 0) end
        end
      end
      for first = 1, #names, CHUNK do
        local last = math.min(first + CHUNK - 1, #names)
        local scores = call('ZMSCORE', holders, unpack(names, first, last))
        for i = first, last do
          local other = lapse_of(names[i], scores[i - first + 1], match(names[i], '/(%d+)$'))
          if other > 0 then
            held, sure = held + units[i], math.min(sure, other)
          else
            lapsed[#lapsed + 1] = names[i]
          end
        end
      end
      return held, sure, lapsed
    end

    -- Removes the rest of a lapsed sender: a step back of the clock must not revive it.
    local function forget(key, own, at, held, sure, blocked)
      if own and held <= own and blocked <= now then
        call('UNLINK', key)
      elseif own then
        write(key, at, false, math.max(0, held - own), sure, blocked)
        call('HDEL', key, name)
      end
      call('ZREM', holders, name)
    end

    return scan, forget
  end

  local function afford(key, n, cost, message)
    local found = call('HMGET', key, 'held', name or '')
    local text, entry, own, number = found[1], found[2], 0, nil
    local held, at, sure, blocked, rest = 0, nil, EXACT, 0, nil
    if text then
      held, at, sure, rest = match(text, '^(%d+)/%d+ at (%d+) sure until (%d+)(.*)$')
      if not held then error('STATE held', 0) end
      -- Adding 0 converts digits to a number without a function call.
      held, at, sure = held + 0, at + 0, sure + 0
      if rest ~= '' then blocked = blocked_until(rest) end
      if held > EXACT or at > EXACT or sure > EXACT or not blocked then error('STATE held', 0) end
    elseif entry then
      error('STATE held', 0)
    end
    if not name then return 0, blocked, false, held, text and sure or now, at end

    if entry then
      own, number = match(entry, '^(%d+) #(%d+)$')
      if not own or own + 0 > EXACT or number + 0 > EXACT then error('STATE holder', 0) end
      own, number = own + 0, number + 0
    end
    local sent, keep = ARGV[message] + 0, ARGV[message + 1]
    keep = keep == '' and own or keep + 0
    if name == '' then
      if n > 0 or keep > 0 then error('LAPSED lease', 0) end
    elseif lapse == 0 then
      local _, forget = rare()
      forget(key, entry and own, at, held, sure, blocked)
      error('LAPSED lease', 0)
    elseif known_end + 0 <= now then
      error('LAPSED lease', 0)
    end
    local is_repeated = number == sent
    if number and sent < number then error('STALE message', 0) end

    local lapsed
    if sure <= now or sure > now + ttl then
      if held ~= own then
        held, sure, lapsed = rare()(key)
      else
        -- Without other holders, nothing has lapsed. The new time is written as after a
        -- scan.
        sure, lapsed = EXACT, own > 0 and {} or nil
      end
    end
    if own > held then error('STATE held', 0) end
    if name == '' then
      if sure == EXACT then sure = 0 end
    elseif lapse < sure then
      sure = lapse
    end

    held = held - own + keep
    local admitted, room = n, 0
    if is_repeated then
      room = own - keep
    elseif blocked <= now then
      room = limit - held
    end
    if cost > 0 and n * cost > room then admitted = math.max(0, math.floor(room / cost)) end
    -- Other algorithms have a third number of the state.
    return admitted, blocked, is_repeated, held, sure, nil, message, own, at, lapsed
  end

  local function charge(key, _, _, k, cost, blocked, is_repeated, held, sure, written, message, own, at, lapsed)
    if not name then
      -- A changed block.
      if held == 0 and blocked <= now then return call('UNLINK', key) end
      return write(key, written, true, held, sure, blocked)
    end
    if name == '' or is_repeated then return end
    local keep = ARGV[message + 1]
    local units = (keep == '' and own or keep) + k * cost
    local is_changed = k > 0 or units ~= own
    local is_old = units > 0 and at and now - at >= QUARTER
    if not (is_changed or lapsed or is_old) then return end

    held = held + k * cost
    if held == 0 and blocked <= now then
      if at then call('UNLINK', key) end
    elseif is_changed and units > 0 then
      write(key, at, false, held, sure, blocked, name, format(WHOLE, units) .. ' #' .. ARGV[message])
    else
      write(key, at, false, held, sure, blocked)
      if units == 0 and own > 0 then call('HDEL', key, name) end
    end
    for first = 1, lapsed and #lapsed or 0, CHUNK do
      local last = math.min(first + CHUNK - 1, #lapsed)
      call('HDEL', key, unpack(lapsed, first, last))
      call('ZREM', holders, unpack(lapsed, first, last))
    end
  end

  return afford, charge
end
