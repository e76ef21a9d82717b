--[[
  reserve: checks against several limits, all or nothing, where at least one key has
  holds: reservations, and takes of gates declared to have holds; many groups in one
  call. First ends the holds whose end has come. Then decides and charges as group
  does. The charges of a reservation become holds.

  If the hold of an item exists, the reservation was made before, and its reply was
  lost: the item admits it again, and charges nothing.

  KEYS     per item, group after group: its state; then its holds, if it has any
  ARGV     q, the number of quotas; then q times: algorithm, 4 numbers (see the
           algorithm); then per group: n (1 for a reservation), number of items, id
           ('': no reservation), ttl (us), what (keep or back, see holds); and per
           item: quota (from 1), cost, longest accepted delay (us, '' for any), 1 if
           it has holds, else 0
  Returns  {now, group, group, ...}, flat. A group is -1 - k, then per item the state
           as in a row of take, then r, the number of items whose hold existed, and
           r numbers of items (from 1). A group that failed is one string: the number
           of the item that failed (from 1), and the error. The other groups are
           processed
  Writes   see the algorithms and holds; a group reads all its items before it
           charges one
]]
local reply, next_key, item = { now }, 1, nil
-- Of the items of the group in progress. Tables for each group would cost a tenth.
local found, used, states, keys, members, held = {}, {}, {}, {}, {}, {}

-- `item` is the number of the item in progress: the error of a group names it.
local function take(n, items)
  local id, ttl, what = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
  local rest = ':' .. ttl .. ':' .. what
  arg = arg + 3
  local k, repeated = n, 0
  for i = 1, items do
    item = i
    local quota, cost, state, checks = quotas[ARGV[arg] + 0], ARGV[arg + 1] + 0, KEYS[next_key], n
    used[i], states[i], members[i], next_key = quota, state, nil, next_key + 1
    if ARGV[arg + 3] == '1' then
      local key = KEYS[next_key]
      next_key = next_key + 1
      finish_ended(quota, state, key)
      if id ~= '' and cost > 0 then
        local member = id .. ':' .. ARGV[arg + 1] .. rest
        if live_until(quota, state, key, member) then
          -- Charged before, so no check is left of this item.
          repeated, checks = repeated + 1, 0
          held[repeated] = i
        else
          keys[i], members[i] = key, member
        end
      end
    end
    found[i] = { checks, cost, quota.afford(state, checks, cost, ARGV[arg + 2]) }
    if checks == n then k = math.min(k, found[i][3]) end
    arg = arg + 4
  end
  local row = { -1 - k }
  for i = 1, items do
    item = i
    local checks, cost, own, blocked, ahead, a, b, c, d, e = unpack(found[i], 1, 10)
    local after = used[i].charge(states[i], checks, own, math.min(k, checks), cost, blocked, ahead, a, b, c, d, e)
    row[#row + 1] = blocked > 0 and -1 - a or a
    if blocked > 0 then row[#row + 1] = blocked end
    if b then row[#row + 1] = b end
    if c then row[#row + 1] = after or c end
  end
  -- All charges come first: a hold without a charge would refund units of others.
  for i = 1, items do
    item = i
    if members[i] and k > 0 then hold(used[i], keys[i], members[i], ttl + 0, what) end
  end
  for i = 1, #row do reply[#reply + 1] = row[i] end
  reply[#reply + 1] = repeated
  for i = 1, repeated do reply[#reply + 1] = held[i] end
end

while next_key <= #KEYS do
  local n, items = ARGV[arg] + 0, ARGV[arg + 1] + 0
  arg = arg + 2
  local next_arg, after_keys = arg + 3 + 4 * items, next_key + items
  for i = 1, items do
    if ARGV[arg + 2 + 4 * i] == '1' then after_keys = after_keys + 1 end
  end
  local failed = failure(take, n, items)
  if failed then reply[#reply + 1] = item .. ' ' .. failed end
  next_key, arg = after_keys, next_arg
end
return reply
