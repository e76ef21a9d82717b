--[[
  stream: the changes that the peers of this region read.

  Defines  `stream` and `epoch`, the third and fourth key of the scripts that append;
           `begin_epoch`; `append`, which adds an entry: field, amount, field, …
]]
local stream, epoch = KEYS[3], KEYS[4]

-- Makes the epoch of a new stream, a random text: IDs of two epochs have no order.
local function begin_epoch(text)
  call('SET', epoch, text, 'NX')
end

local function append(changes)
  call('XADD', stream, '*', unpack(changes))
end
