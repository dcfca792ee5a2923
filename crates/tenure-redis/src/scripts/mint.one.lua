-- One counter for all locks, in the hash of the record, so that both are lost together or not at all. Its field is
-- named after the gate (run, history, layout, max_ttl) and is there only while this server may grant: a counter that
-- was not there counts from 1, far below the floor of 10^6 that the check puts it on.
local function may_grant()
  return redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1
end

-- The first of at most `want` tokens and their count; nothing if the gate is closed. Never ahead of the clock (A10).
local function mint(want)
  local last = redis.call('HINCRBY', KEYS[3], ARGV[1], '1')
  if last < 1000000 then
    redis.call('HDEL', KEYS[3], ARGV[1])
    return nil
  end
  if want == 1 then return last, 1 end
  local time = redis.call('TIME')
  local count = math.max(1, math.min(want, time[1] * 1000000 + time[2] - last + 1))
  if count > 1 then redis.call('HINCRBY', KEYS[3], ARGV[1], count - 1) end
  return last, count
end

-- Raises the counter also while the gate is closed: it waits in the field `token` then.
local function raise()
  if not mint(1) then redis.call('HINCRBY', KEYS[3], 'token', '1') end
end

local function fence()
  return redis.call('HGET', KEYS[3], ARGV[1]) or redis.call('HGET', KEYS[3], 'token') or '0'
end
