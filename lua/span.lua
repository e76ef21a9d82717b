--[[
  span: refuses a call outside of the span of time for which its arguments were
  computed, before it reads or writes a key. It follows `now` in the scripts of
  calls with calendar windows, whose boundaries only the client can compute. The
  rest of such a script is that of other calls: a calendar window is a fixed window
  aligned to the clock, with its beginning as the offset, while it lasts.

  KEYS     those of the script
  ARGV     those of the script; then the beginning of the span, and its end (us):
           the times that are in the same window as the beginning, for each quota
  Returns  'SPAN ' and now, if now is not in the span
  Writes   nothing
]]
local to, from = table.remove(ARGV) + 0, table.remove(ARGV) + 0
if now < from or now >= to then return 'SPAN ' .. format('%.0f', now) end
