-- Before claim.lua and all its parts. A waiter that has a place behind a foreign client learns at low cost that this client
-- still holds the lock; otherwise it claims in the same step. The whole value is not read, and the waiter's place is not
-- kept.
-- KEYS, ARGV  those of claim
-- reply {6, how many wait before it, ms left (-1 no end), the first 64 bytes of the value, or 'zset' as in lock.lua},
--       or that of claim
local rest = redis.call('PTTL', KEYS[1])
-- A place that is in the queue only, or among the places only, does not count: claim.lua repairs it.
local place = rest ~= -2 and redis.call('ZSCORE', KEYS[4], ARGV[3]) and redis.call('ZRANK', KEYS[2], ARGV[3])
if place then
  local head = redis.pcall('GETRANGE', KEYS[1], '0', '63')
  if type(head) == 'table' and rest >= 0 and type(redis.pcall('ZCARD', KEYS[1])) == 'number' then head = 'zset' end
  if type(head) == 'string' and head ~= 'tenure:shared' and string.match(head, '^%x+():') ~= 49 then
    return {6, place, rest, head}
  end
end
