-- Tells the process of a holder that somebody waits. Changes nothing.
-- KEYS  1 lock
-- ARGV  1 owner
-- reply how many heard it
return redis.call('PUBLISH', 'tenure:h:' .. string.sub(ARGV[1], 1, 16), 'a' .. string.sub(ARGV[1], 17))
