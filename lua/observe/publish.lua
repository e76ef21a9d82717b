--[[
  publish: adds the figures of an instance to those of the fleet, and records the
  instance.

  KEYS     the hashes of figures of three consecutive buckets; then for each of them
           the hash of instance records of its time
  ARGV     start of the first bucket (us); duration of a bucket, how long its hash is
           kept, duration of a hash of records (us); maximum number of gates and of
           instances in a hash; id of the instance, its record; then field and text
           of each gate, whose words are NAME=NUMBER
  Returns  {now, 1}; {now, 0} if the time is in none of the buckets, so that nothing
           was written; or an error string
  Writes   HSET, PEXPIREAT. Adds numbers of equal names, also those of other versions.
           The fields (count) and (other) hold the number of gates or instances, and
           the sum of the gates beyond their maximum
]]
local first, bucket, kept, recorded = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local max_gates, max_instances, id, record = ARGV[5] + 0, ARGV[6] + 0, ARGV[7], ARGV[8]
local FIELDS, MAX_WORDS, MAX_NAME = 9, 64, 40
local at = math.floor((now - first) / bucket) + 1
if at < 1 or at > 3 then return { now, 0 } end

-- Adds the numbers of a text. `sums` holds each number by its name, and the names in
-- their order. Skips all that an instance does not write.
local function add(sums, text)
  for name, number in string.gmatch(text, '([%w_/]+)=(%d+)') do
    if not sums[name] and #sums < MAX_WORDS and #name <= MAX_NAME then
      sums[#sums + 1], sums[name] = name, 0
    end
    if sums[name] then sums[name] = math.min(sums[name] + number, EXACT) end
  end
end

local function text_of(sums)
  local words = {}
  for i = 1, #sums do words[i] = sums[i] .. '=' .. format(WHOLE, sums[sums[i]]) end
  return table.concat(words, ' ')
end

local function count_of(text)
  return math.min(string.match(text or '', '^%d+$') or 0, EXACT)
end

-- Returns the fields and texts to write, with the figures of this instance added.
local function added(key)
  local names, written, other = { '(count)', '(other)' }, {}, {}
  for i = FIELDS, #ARGV, 2 do names[#names + 1] = ARGV[i] end
  if #names == 2 then return written end
  local found = call('HMGET', key, unpack(names))
  local count = count_of(found[1])
  add(other, found[2] or '')
  for i = FIELDS, #ARGV, 2 do
    local field, text, before = ARGV[i], ARGV[i + 1], found[(i - FIELDS) / 2 + 3]
    local is_gate = string.sub(field, 1, 1) ~= '('
    if field == '(other)' or is_gate and not before and count >= max_gates then
      add(other, text)
    else
      if is_gate and not before then count = count + 1 end
      local sums = {}
      add(sums, before or '')
      add(sums, text)
      written[#written + 1] = field
      written[#written + 1] = text_of(sums)
    end
  end
  if #other > 0 then
    written[#written + 1] = '(other)'
    written[#written + 1] = text_of(other)
  end
  written[#written + 1] = '(count)'
  written[#written + 1] = format(WHOLE, count)
  return written
end

local failed = failure(function()
  local key, records = KEYS[at], KEYS[at + 3]
  local written = added(key)
  local found = call('HMGET', records, '(count)', id)
  local count, is_new = count_of(found[1]), not found[2]
  if #written > 0 then
    call('HSET', key, unpack(written))
    expire(key, first + at * bucket + kept, 0)
  end
  if not is_new or count < max_instances then
    if is_new then count = count + 1 end
    call('HSET', records, '(count)', format(WHOLE, count), id, record .. ' at=' .. stamp)
    expire(records, now + 2 * recorded, 0)
  end
end)
return failed or { now, 1 }
