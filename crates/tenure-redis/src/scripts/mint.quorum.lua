-- A counter per lock, forgotten after a day, so that the nodes of a quorum count alike; beside it the record, which is
-- the gate: its field named after run, history and settings is there only while this server may grant. That field holds
-- the floor in us that judge.lua put there, below which no counter begins that was lost (H3.1); mints do not change it.
-- No token is smaller than the last grain of the server's time before its mint: a server that was put back to an earlier
-- state repeats none (L2).
-- KEYS  3 counter  7 record
local floor
local function may_grant()
  if floor == nil then floor = redis.call('HGET', KEYS[7], ARGV[1]) end
  return floor and true
end

-- Never ahead of the clock (A10). Clocks of nodes differ, their counters need not: within 100 ms they count alike.
local function count_on(want, least)
  local now = wall_us()
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

-- While the gate is closed, the floor that it will open on waits in the field `token`.
local function least()
  return tonumber(may_grant() and floor or redis.call('HGET', KEYS[7], 'token') or '0')
end

-- Raises the counter also while the gate is closed.
local function raise()
  count_on(1, least())
end

local function fence()
  return string.format('%.0f', math.max(least(), tonumber(redis.call('GET', KEYS[3]) or '0')))
end
