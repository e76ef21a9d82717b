--[[
  figures: reads the figures of the fleet, for operators. No decision calls it.

  KEYS     any number of hashes that publish writes
  ARGV     maximum number of fields of a hash; maximum bytes of a field and its text
  Returns  {now}, followed by one array per key: its fields and texts up to these
           limits; or an error string
  Writes   nothing
]]
local try = redis.pcall
local max_fields, max_bytes = ARGV[1] + 0, ARGV[2] + 0
local reply = { now }
for i = 1, #KEYS do
  local found, row = try('HGETALL', KEYS[i]), {}
  if found.err then
    row = found.err
  else
    -- Another program can have written the hash.
    for field = 1, #found, 2 do
      if #row < 2 * max_fields and #found[field] + #found[field + 1] <= max_bytes then
        row[#row + 1] = found[field]
        row[#row + 1] = found[field + 1]
      end
    end
  end
  reply[i + 1] = row
end
return reply
