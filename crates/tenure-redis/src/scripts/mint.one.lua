-- One counter for all locks, in the hash of the record, so that both are lost together or not at all. Its field is named
-- after the gate, and exists only while the gate is open. After count.
-- ARGV  1 gate  10 (a claim only) the largest token that this server granted to this client
-- No token is smaller than the server's time at its mint. So a server that was put back to an earlier state, which has the
-- same run and history, repeats none (L2). A counter that is behind what a client knows shows that the server was put back.

-- The first of at most `want` tokens and their count; or nothing, and 0 if the gate is closed, or 5 if the server was put
-- back (call rewound.lua). Never ahead of the clock (A10).
local function mint(want)
  local last = redis.call('HGET', KEYS[3], ARGV[1])
  if not last then return nil, 0 end
  last = tonumber(last) or error('ERR the counter of fencing tokens is no number')
  if last < tonumber(ARGV[10] or '0') then return nil, 5 end
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local count = math.max(1, math.min(want, now - last))
  last = math.max(last + count, now)
  redis.call('HSET', KEYS[3], ARGV[1], countable(last))
  return last - count + 1, count
end
