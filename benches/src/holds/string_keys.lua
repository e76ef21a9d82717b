-- Reservations as a typical script written by hand keeps them: a counter per key and window, and a string per
-- reservation and key that expires on its own. Units of a reservation that expires stay charged; a settle after
-- the window has ended refunds nothing.
--
-- KEYS: two counters per reservation. ARGV: `reserve` or `settle`, limit, ttl (ms); then per reservation its id,
-- the units of its two keys, and the units used. Returns 1 or 0 per reservation.
local verb, limit, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local reply = {}
for i = 1, #KEYS / 2 do
  local arg, done = 4 + 5 * (i - 1), 1
  if verb == 'reserve' then
    for j = 0, 1 do
      local used = tonumber(redis.call('GET', KEYS[2 * i - 1 + j]) or 0)
      if used + ARGV[arg + 1 + j] > limit then done = 0 end
    end
    for j = 0, 1 do
      local key, units = KEYS[2 * i - 1 + j], ARGV[arg + 1 + j]
      if done == 1 then
        if redis.call('INCRBY', key, units) == tonumber(units) then redis.call('PEXPIRE', key, '1000') end
        redis.call('SET', key .. ':' .. ARGV[arg], units, 'PX', ttl)
      end
    end
  else
    for j = 0, 1 do
      local key = KEYS[2 * i - 1 + j]
      local hold = key .. ':' .. ARGV[arg]
      local units = redis.call('GET', hold)
      if units then
        redis.call('UNLINK', hold)
        if redis.call('EXISTS', key) == 1 then
          redis.call('DECRBY', key, string.format('%d', units - ARGV[arg + 3 + j]))
        end
      else
        done = 0
      end
    end
  end
  reply[i] = done
end
return reply
