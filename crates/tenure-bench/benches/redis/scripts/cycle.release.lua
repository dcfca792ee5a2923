-- The raw fenced cycle: compare and delete.
-- KEYS  1 lock
-- ARGV  1 owner
-- reply 1 released; 0 does not hold
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
