-- A counter per lock, floored with the server's time at every mint and forgotten after a day: for a Cluster, where there
-- cannot be one record for all locks. There is no gate: after a failover only the token protects. After count.

-- The first of at most `want` tokens and their count. Never ahead of the clock (A10).
local function mint(want)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('GET', KEYS[3]) or '0')
  local count = math.max(1, math.min(want, now - last))
  last = math.max(last + count, now)
  redis.call('SET', KEYS[3], countable(last), 'PX', 86400000)
  return last - count + 1, count
end
