--[[
  changes: changes of a key, made here or by a peer.

  Defines  `set_block`, `clear`
]]

-- Denies all checks until a time (us), or lifts the block if that is 0. The used
-- units stay.
local function set_block(quota, key, ends)
  local _, blocked, _, a, b, c, d = quota.afford(key, 0, 1, '')
  if ends == 0 and blocked == 0 then return end
  if quota.is_log and ends > 0 then
    call('ZADD', key, format(WHOLE, ends), 'block')
  elseif quota.is_log then
    call('ZREM', key, 'block')
  end
  -- Of a level, d says that it keeps its expiry, which must now cover the block.
  quota.charge(key, 1, 1, 0, 1, ends, true, a, b, c, quota.apply and d)
end

local function clear(key)
  call('UNLINK', key)
end
