-- Frees the lock, or gives it to the first in the list.
-- KEYS  1 lock  2 queue (list)  3 fence
-- ARGV  1 owner  2 ttl in ms
-- reply 1 released; 0 does not hold
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local next = redis.call('LPOP', KEYS[2])
if not next then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
redis.call('PUBLISH', 'bench:' .. string.sub(next, 1, 16), string.format('%d', redis.call('INCR', KEYS[3])))
return 1
