-- Frees a lock that this owner holds alone and that nobody waits for. The path that is counted.
-- KEYS  1 lock
-- ARGV  1 owner
-- reply 1 released; 0 if it is not as plain as that (ask leave.lua), and then nothing was changed
-- A value that ends in '+' says that there are waiters.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 1, 48) == ARGV[1] and string.byte(value, -1) ~= 43 then
  redis.call('DEL', KEYS[1])
  return 1
end
return 0
