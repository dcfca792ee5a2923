-- As acquire.lua, in a Cluster, where each lock has its own counter and there is no gate. After count and mint.
-- KEYS  1 lock  2 queue  3 counter
-- ARGV, reply  those of acquire.lua
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
local first, count = mint(tonumber(ARGV[6] or '1'))
local last = countable(first + count - 1)
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. last .. ARGV[3], 'PX', ARGV[4])
return ARGV[6] and {last, count} or last
