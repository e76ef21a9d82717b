--[[
  slow_windows: the windows for the slow path of take_gate, whose rows name the window
  that they found.

  Defines  `algorithm`, see slow_path
]]
local function algorithm(arg)
  local most_debt, carry = string.match(mode, '(%d+),(%d)$')
  local afford, charge = windows(arg, most_debt + 0, carry == '1')
  local function charge_named(...)
    charge(...)
    local w = select(11, ...)
    return format(WHOLE .. ' ' .. WHOLE .. ' ' .. WHOLE, w.start, w.debt, w.next)
  end
  return afford, charge_named
end
