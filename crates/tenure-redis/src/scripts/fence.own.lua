-- The counter itself. After mint.
local function raise()
  mint(1)
end

local function fence()
  return redis.call('GET', KEYS[3]) or '0'
end
