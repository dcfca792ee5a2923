-- The counter itself. After gate and mint.

-- While the gate is closed, the floor with which it will open is in the field `token`.
local function least()
  return tonumber(may_grant() and floor or redis.call('HGET', KEYS[7], 'token') or '0')
end

-- Raises the counter, even while the gate is closed.
local function raise()
  count_on(1, least())
end

local function fence()
  return string.format('%.0f', math.max(least(), tonumber(redis.call('GET', KEYS[3]) or '0')))
end
