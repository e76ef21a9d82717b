--[[
  inspect_holds: reads the holds of a key, for operators. No decision calls it.

  KEYS     one: the zset of the holds, see holds
  ARGV     the maximum number of holds
  Returns  {now, number of members, member, score, member, score, ...}: those that
           end first; or a string: the error
  Writes   nothing
]]
local try = redis.pcall
local key = KEYS[1]
local count = try('ZCARD', key)
if type(count) == 'table' then return count.err end
local reply = { now, count }
local members = try('ZRANGE', key, '0', format(WHOLE, ARGV[1] - 1), 'WITHSCORES')
for i = 1, #members do reply[#reply + 1] = members[i] end
return reply
