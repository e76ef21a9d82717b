--[[
  usual_nothing: of an algorithm whose keys are all taken in full.

  Promises  `usual` and `done`, see usual_token_bucket
]]
local done = 0

local function usual() end
