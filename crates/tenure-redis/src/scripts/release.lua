-- Releases a lock that this owner holds alone and that has no waiters. The fast path.
-- KEYS  1 lock
-- ARGV  1 owner
-- reply 1 released; 0 if this owner does not hold it alone or it may have waiters (call leave.lua): nothing was changed
-- A value that ends in '+' shows that there are waiters.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 1, 48) == ARGV[1] and string.byte(value, -1) ~= 43 then
  redis.call('DEL', KEYS[1])
  return 1
end
return 0
