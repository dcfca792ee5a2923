-- The counter itself. After mint.

-- Raises the counter, even while the gate is closed: then it is in the field `token`.
local function raise()
  if mint(1) then return end
  local last, time = tonumber(redis.call('HGET', KEYS[3], 'token')) or 0, redis.call('TIME')
  redis.call('HSET', KEYS[3], 'token', countable(math.max(last + 1, time[1] * 1000000 + time[2])))
end

local function fence()
  return redis.call('HGET', KEYS[3], ARGV[1]) or redis.call('HGET', KEYS[3], 'token') or '0'
end
