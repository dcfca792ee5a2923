-- Takes a lock that nobody holds and nobody waits for, in exclusive mode. The path that is counted.
-- KEYS  1 lock  2 queue  3 one
-- ARGV  1 gate  2 owner  3 ":since:label"  4 ttl in ms  5 how far this server has counted for this client, or 0
--       6 how many tokens at most, if more than one
-- reply the last token, and with 6 their count; 0 if it is not as plain as that (ask claim.lua); -1 if the gate is closed; -2 if the server was put back
--       to an earlier state (tell rewound.lua)
-- The lock's SET is the last write (H1.12). The counter is the gate: see count.lua and mint.one.lua, whose `mint` this is, written
-- out: a function that a script makes costs it a third of a command. A token may be minted in vain.
local call = redis.call
local last = call('HGET', KEYS[3], ARGV[1])
if not last then return -1 end
-- A text that becomes a number, or a number a text, costs as much as half a small command. So what a client that is alone knows is
-- compared as text, and the time is a token as it is printed, unless a zero is missing in it.
if last ~= ARGV[5] then
  local number = tonumber(last) or error('ERR the counter of fencing tokens is no number')
  if number < tonumber(ARGV[5]) then return -2 end
end
local time, count = call('TIME'), 1
local text = time[1] .. time[2]
local token = text - 0
if ARGV[6] or #time[2] < 6 or not (token - last > 0 and token <= 9007199254740991) then
  token, last = time[1] * 1000000 + time[2], tonumber(last)
  if ARGV[6] then count = math.max(1, math.min(tonumber(ARGV[6]), token - last)) end
  if not (last + count <= token) then token = last + count end -- also a counter that reads "nan"
  if not (token <= 9007199254740991) then error('SPENT the counter of fencing tokens is at its end') end
  text = string.format('%d', token)
end
if call('EXISTS', KEYS[2]) == 1 then return 0 end
call('HSET', KEYS[3], ARGV[1], text)
if call('SET', KEYS[1], ARGV[2] .. ':' .. text .. ARGV[3], 'PX', ARGV[4], 'NX') then
  if ARGV[6] then return {text, count} end
  return text
end
-- A holder that may have nothing to do hears that somebody came, and gives the lock back while that one queues (`docs/decisions/local-turns.md`). Who
-- waits tells it again by itself: a hint may be lost (L6), and a missing right is no error.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, -6) == ',idles' then
  redis.pcall('PUBLISH', 'tenure:h:' .. string.sub(value, 1, 16), 'a' .. string.sub(value, 17, 48))
end
return 0
