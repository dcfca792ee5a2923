-- As acquire.lua, on a node of a quorum.
-- KEYS  1 lock  2 queue  3 counter  4 record
-- ARGV, reply  those of acquire.lua; never -2
-- See count.lua and mint.quorum.lua. This is their `mint`, inlined, for a counter that is incremented in place: INCR keeps
-- its expiry, which each grain sets again. The script checks the lock before it mints: a token that is not granted would
-- make the counters of the nodes differ, and cost the next claim a round.
local call, LAST = redis.call, 9007199254740991
local floor = call('HGET', KEYS[4], ARGV[1])
if not floor then return -1 end
if call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local least = math.max(now - now % 100000, floor) -- in this order: a floor that reads "nan" is ignored
local counted = least <= LAST and call('INCR', KEYS[3]) or least
if counted == 1 then least = math.max(least, now) end -- the counter did not exist
local token, count = math.max(counted, least), 1
if ARGV[6] then
  count = math.max(1, math.min(tonumber(ARGV[6]), now - token + 1))
  token = token + (count - 1) -- in this order: as a number, 2^53 + 1 equals 2^53
end
if not (token <= LAST) then error('SPENT the counter of fencing tokens is at its end') end
local text = string.format('%d', token)
-- A counter that is ahead of the clock reaches no grain; it is written here, because it is kept for a day as well.
if token ~= counted or token > now then
  local set = redis.pcall('SET', KEYS[3], text, 'PX', '86400000')
  if set.err then
    if counted == 1 then call('DEL', KEYS[3]) end -- what INCR made does not expire
    error(set.err)
  end
end
call('SET', KEYS[1], ARGV[2] .. ':' .. text .. ARGV[3], 'PX', ARGV[4])
return ARGV[6] and {text, count} or text
