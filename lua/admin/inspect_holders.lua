--[[
  inspect_holders: reads the holders of an in-flight limit, for operators. No decision
  calls it.

  KEYS     1 the hash of the limit; 2 the zset of leases
  ARGV     the maximum number of holders to return
  Returns  {now, number of holders, then per holder: name, its field (units and
           message number), end of its lease (us), or '' if it has none}, flat
  Writes   nothing
]]
local key, holders, most = KEYS[1], KEYS[2], ARGV[1] + 0
local fields = call('HGETALL', key)
local reply, count = { now, 0 }, 0
for i = 1, #fields, 2 do
  -- Earlier versions kept a queue.
  if fields[i] ~= 'held' and fields[i] ~= 'queue' then
    count = count + 1
    if count <= most then
      local size = #reply
      reply[size + 1] = string.sub(fields[i], 1, 200)
      reply[size + 2] = string.sub(fields[i + 1], 1, 200)
      reply[size + 3] = call('ZSCORE', holders, fields[i]) or ''
    end
  end
end
reply[2] = count
return reply
