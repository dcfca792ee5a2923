-- The raw fenced cycle: takes a lock that nobody holds. No queue, no gate, no wait.
-- KEYS  1 lock  2 fence
-- ARGV  1 owner  2 ttl in ms
-- reply token; 0 if somebody holds it
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
return 0
