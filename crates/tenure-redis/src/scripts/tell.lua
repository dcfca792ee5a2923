-- Sends a hint. Changes nothing.
-- KEYS  1 lock
-- ARGV  1 channel  2 owner without its process
-- reply how many connections received it
return redis.call('PUBLISH', ARGV[1], 'a' .. ARGV[2])
