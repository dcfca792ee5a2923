-- The least that can hand a lock on: a list. Who dies in it, or while it is handed the lock, blocks the others.
-- KEYS  1 lock  2 queue (list)  3 fence
-- ARGV  1 owner  2 ttl in ms
-- reply token; 0 queued: the token is pushed
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[3]) end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0
