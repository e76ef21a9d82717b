--[[
  flush: moves changes of the outbox into one entry of the stream. Any number of
  callers have the same effect.

  KEYS     outbox, counts, stream, epoch
  ARGV     the most changes, for how long entries are kept (us), the most entries, the
           text of a new epoch
  Returns  {now, the number of changes that are left}
  Writes   HDEL of the outbox, SET of a missing epoch, XADD, XTRIM
]]
local found = call('HRANDFIELD', outbox, ARGV[1], 'WITHVALUES')
local fields, changes = {}, {}
for i = 1, #found, 2 do
  local field, amount = found[i], found[i + 1]
  -- Clocks of regions are not compared: how long a block still is.
  if string.find(field, '^block ') then amount = format(WHOLE, math.max(0, amount - now)) end
  fields[#fields + 1] = field
  if amount ~= '0' then
    changes[#changes + 1] = field
    changes[#changes + 1] = amount
  end
end
begin_epoch(ARGV[4])
if #changes > 0 then append(changes) end
if #fields > 0 then call('HDEL', outbox, unpack(fields)) end
call('XTRIM', stream, 'MINID', format(WHOLE, math.max(0, math.floor((now - ARGV[2]) / 1000))))
call('XTRIM', stream, 'MAXLEN', ARGV[3])
return { now, call('HLEN', outbox) }
