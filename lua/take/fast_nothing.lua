--[[
  fast_nothing: the fast path of an algorithm that sends every key to the slow path.

  Defines  `fast_path` and `done`, see fast_token_bucket
]]
local done = 0

local function fast_path() end
