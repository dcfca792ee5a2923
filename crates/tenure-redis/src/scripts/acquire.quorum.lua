-- As acquire.lua, on a node of a quorum.
-- KEYS  1 lock  2 queue  3 counter  4 record
-- ARGV, reply  those of acquire.lua; never -2
-- See count.lua and mint.quorum.lua, whose `mint` this is, written out. It looks before it mints: a token minted in vain
-- would set the counters of the nodes apart, and cost the next claim a round.
local call = redis.call
local floor = call('HGET', KEYS[4], ARGV[1])
if not floor then return -1 end
if call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
local time, last = call('TIME'), tonumber(call('GET', KEYS[3]) or '0')
local now = time[1] * 1000000 + time[2]
last = math.max(last, tonumber(floor) - 1, (last == 0 and now or now - now % 100000) - 1)
local count = ARGV[6] and math.max(1, math.min(tonumber(ARGV[6]), now - last)) or 1
if not (last + count <= 9007199254740991) then error('SPENT the counter of fencing tokens is at its end') end
local text = string.format('%d', last + count)
call('SET', KEYS[3], text, 'PX', '86400000')
call('SET', KEYS[1], ARGV[2] .. ':' .. text .. ARGV[3], 'PX', ARGV[4])
return ARGV[6] and {text, count} or text
