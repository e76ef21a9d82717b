--[[
  hash_state: shared by the algorithms that store their state as one text, in the
  field `used` of a hash. Three fields would take Redis half as long again. If the
  key is blocked, ` blocked until us` follows the state. A fixed window stores the
  text of a blocked key in a string.

  Defines  `BLOCKED`, the words before the end of a block; `blocked_until`, which
           reads that end
]]
local match = string.match
local BLOCKED = ' blocked until '

-- Returns the end of the block (us) from the text after a state, or nil if tidegate
-- never writes that text.
local function blocked_until(rest)
  local ends = match(rest, '^ blocked until (%d+)$')
  return ends and integer(ends)
end
