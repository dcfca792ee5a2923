-- Acquires a lock in exclusive mode, if it is free and has no waiters. The fast path.
-- KEYS  1 lock  2 queue  3 one
-- ARGV  1 gate  2 owner  3 ":since:label"  4 ttl in ms
--       5 the largest token that this server granted to this client, or 0  6 the largest number of tokens, if more than one
-- reply the last token, and with ARGV 6 their count; 0 if the lock is held or has waiters (call claim.lua);
--       -1 if the gate is closed; -2 if the server was put back to an earlier state (call rewound.lua)
-- The lock's SET is the last write (H1.12). The counter is the gate: see count.lua and mint.one.lua. This is their `mint`,
-- inlined: to define a function costs a script a third of a command. A token may be minted without a grant.
local call = redis.call
local last = call('HGET', KEYS[3], ARGV[1])
if not last then return -1 end
-- To convert a text to a number, or a number to a text, costs as much as half a small command. So what a lone client knows
-- is compared as text. The token is the time as it is printed, unless the microseconds have fewer than six digits.
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
  if not (last + count <= token) then token = last + count end -- true for a counter that reads "nan" as well
  if not (token <= 9007199254740991) then error('SPENT the counter of fencing tokens is at its end') end
  text = string.format('%d', token)
end
if call('EXISTS', KEYS[2]) == 1 then return 0 end
call('HSET', KEYS[3], ARGV[1], text)
if call('SET', KEYS[1], ARGV[2] .. ':' .. text .. ARGV[3], 'PX', ARGV[4], 'NX') then
  if ARGV[6] then return {text, count} end
  return text
end
-- A holder that may be idle receives a hint that a waiter came, and releases the lock while the waiter queues
-- (`docs/decisions/local-turns.md`). The waiter repeats the hint by itself: a hint may be lost (L6), and a missing right is
-- no error.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, -6) == ',idles' then
  redis.pcall('PUBLISH', 'tenure:h:' .. string.sub(value, 1, 16), 'a' .. string.sub(value, 17, 48))
end
return 0
