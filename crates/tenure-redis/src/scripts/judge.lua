-- Writes the record as it was judged, if facts and record are still what was judged. After facts.
-- KEYS  1 record
-- ARGV  1 facts  2 record  3 wait in ms  4 gate  5 run  6 replid  7 settings  8 next
--       9 when a replica acknowledged last, or ''  10 for how many ms nothing is renewed
-- reply 1 written; 0 something has changed (ask check.lua again)
-- The gate opens with the counter on its floor: the largest of all counters, now, and the end of the wait.
if (facts()) ~= ARGV[1] or record() ~= ARGV[2] then return 0 end
local time, wait = redis.call('TIME'), tonumber(ARGV[3])
local floor = time[1] * 1000000 + time[2] + wait * 1000
local all, old = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  old[#old + 1] = all[i]
  if all[i] == 'token' or string.find(all[i], '.', 1, true) then
    floor = math.max(floor, tonumber(all[i + 1]) or 0)
  end
end
local now = math.floor((time[1] * 1000000 + time[2]) / 1000)
local ready, renews = string.format('%.0f', now + wait), string.format('%.0f', now + ARGV[10])
-- Nothing must stop the script once the old record is gone. The first write changes nothing, and a full memory does not
-- refuse it; then it does not refuse the next ones either. If this user lacks a right, one of the first two writes is
-- refused.
redis.call('HDEL', KEYS[1], '')
if old[1] then
  redis.call('HSET', KEYS[1], 'ready', ready, 'wait', ARGV[3], 'renews', renews)
  redis.call('HDEL', KEYS[1], unpack(old))
end
-- The record is written anew, with the counter in front: each claim reads it, and Redis reads a small hash from the front.
redis.call('HSET', KEYS[1], wait == 0 and ARGV[4] or 'token', string.format('%.0f', floor), 'run', ARGV[5],
  'replid', ARGV[6], 'ready', ready, 'wait', ARGV[3], 'renews', renews,
  'settings', ARGV[7], 'next', ARGV[8])
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'acked', ARGV[9]) end
return 1
