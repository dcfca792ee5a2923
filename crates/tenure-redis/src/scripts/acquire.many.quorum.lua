-- As acquire.many.lua, on a node of a quorum.
-- KEYS  1 record  then per lock: lock, queue, counter
-- ARGV, reply  those of acquire.many.lua; never -2
-- Each lock as in acquire.quorum.lua. But what would be an error there is the reply 0, 0 here, so that no other lock is
-- affected (L9).
local call, pcall = redis.call, redis.pcall
local floor = call('HGET', KEYS[1], ARGV[1])
if not floor then return -1 end
floor = tonumber(floor) or error('ERR the floor of fencing tokens is no number')
local time, locks = call('TIME'), (#KEYS - 1) / 3
local now, looked, taken, answers = time[1] * 1000000 + time[2], {}, {}, {}
local least, LAST = math.max(now - now % 100000, floor), 9007199254740991
for i = 1, locks do
  looked[2 * i - 1], looked[2 * i] = KEYS[3 * i - 1], KEYS[3 * i]
end
local all_are_free = call('EXISTS', unpack(looked)) == 0

-- Returns the last token of a lock and their count, if the lock was acquired.
local function take(i)
  local lock, counter = KEYS[3 * i - 1], KEYS[3 * i + 1]
  if taken[lock] or least > LAST or not (all_are_free or call('EXISTS', lock, KEYS[3 * i]) == 0) then return end
  local counted = pcall('INCR', counter)
  if type(counted) ~= 'number' then return end
  local first = math.max(counted, least, counted == 1 and now or 0)
  local count = math.max(1, math.min(tonumber(ARGV[4 * i + 2]), now - first + 1))
  local last = first + (count - 1)
  if not (last <= LAST) then return end
  local text = string.format('%d', last)
  if (last ~= counted or last > now) and pcall('SET', counter, text, 'PX', '86400000').err then
    if counted == 1 then pcall('DEL', counter) end
    return
  end
  local value = ARGV[4 * i - 1] .. ':' .. text .. ARGV[4 * i]
  if pcall('SET', lock, value, 'PX', ARGV[4 * i + 1]).err then return end
  taken[lock] = true
  return last, count
end

for i = 1, locks do
  local last, count = take(i)
  answers[2 * i - 1], answers[2 * i] = last or 0, count or 0
end
return answers
