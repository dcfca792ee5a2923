-- A counter per lock, forgotten after a day, so that the nodes of a quorum count alike; never below the floor in the
-- record. After gate and count.
-- No token is smaller than the last grain of the server's time before its mint. So a server that was put back to an earlier
-- state repeats none (L2).
-- KEYS  3 counter

-- Never ahead of the clock (A10). Clocks of nodes differ, but their counters need not: within 100 ms they count alike.
local function count_on(want, least)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('GET', KEYS[3]) or '0')
  least = math.max(least, last == 0 and now or now - now % 100000)
  last = math.max(last, least - 1)
  local count = math.max(1, math.min(want, now - last))
  last = last + count
  redis.call('SET', KEYS[3], countable(last), 'PX', 86400000)
  return last - count + 1, count
end

-- The first of at most `want` tokens and their count; nothing if the gate is closed.
local function mint(want)
  if not may_grant() then return nil, 0 end
  return count_on(want, tonumber(floor))
end
