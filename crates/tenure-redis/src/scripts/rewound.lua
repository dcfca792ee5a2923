-- Closes the gate of a server that was put back to an earlier state: it has forgotten leases, as a server that restarted.
-- KEYS  1 record
-- ARGV  1 gate  2 the largest token that it granted before  3 wait in ms
-- reply 1 closed; 0 its counter has reached that token, or the gate is closed already
-- The field `token` keeps the counter, no lower than what was granted; judge.lua opens the gate on it when the wait has
-- ended.
local last = tonumber(redis.call('HGET', KEYS[1], ARGV[1]))
if not last or last >= tonumber(ARGV[2]) then return 0 end
local time = redis.call('TIME')
local ready = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3]
redis.call('HSET', KEYS[1], 'ready', string.format('%.0f', ready), 'wait', ARGV[3],
  'token', ARGV[2])
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
