-- As acquire.lua, on a node of a quorum.
-- KEYS  1 lock  2 queue  3 counter  4 record
-- ARGV, reply  those of acquire.lua; never -2
-- See count.lua and mint.quorum.lua, whose `mint` this is, written out, for a counter that is counted up where it is: it keeps its end,
-- which is set anew with each grain. It looks before it mints: a token minted in vain would set the counters of the nodes apart, and
-- cost the next claim a round.
local call, SPENT = redis.call, 'SPENT the counter of fencing tokens is at its end'
local floor = call('HGET', KEYS[4], ARGV[1])
if not floor then return -1 end
if call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local least = math.max(floor, now - now % 100000)
local counted, count = redis.pcall('INCR', KEYS[3]), 1
if type(counted) ~= 'number' then
  if string.find(counted.err, 'integer') or string.find(counted.err, 'overflow') then error(SPENT) end
  return counted
end
if counted == 1 then least = math.max(least, now) end -- it was not there
local token = math.max(counted, least)
if ARGV[6] then
  count = math.max(1, math.min(tonumber(ARGV[6]), now - token + 1))
  token = token + count - 1
end
if not (token <= 9007199254740991) then error(SPENT) end
local text = string.format('%d', token)
if token ~= counted then call('SET', KEYS[3], text, 'PX', '86400000') end
call('SET', KEYS[1], ARGV[2] .. ':' .. text .. ARGV[3], 'PX', ARGV[4])
return ARGV[6] and {text, count} or text
