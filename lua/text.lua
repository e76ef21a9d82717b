--[[
  text: what the algorithms have in common that keep a state as one text, in the
  field `used` of a hash: one field, since three take Redis half as long again.
  Where the key is blocked, ` blocked until us` stands after the state.

  Promises  `BLOCKED`, by which that is made, and `blocked_until`, by which it is
            read
]]
local match = string.match
local BLOCKED = ' blocked until '

-- Until when, by what stands after a state; nil where we never write that.
local function blocked_until(rest)
  local ends = match(rest, '^ blocked until (%d+)$')
  return ends and integer(ends)
end
