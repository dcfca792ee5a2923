-- Acquires many locks in one step, each as acquire.lua does.
-- KEYS  1 one  then per lock: lock, queue
-- ARGV  1 gate  2 the largest token that this server granted to this client, or 0
--       then per lock: owner, ":since:label", ttl in ms, the largest number of tokens
-- reply per lock the last token and their count, or 0, 0 if the lock was not granted (call claim.lua);
--       instead of all: -1 or -2 as acquire.lua
-- All tokens are minted before the first SET: an error comes before anything was granted (H1.12, L9). All blocks together
-- are no longer than one may be, and tokens may be minted without a grant.
local call, pcall = redis.call, redis.pcall
local last = call('HGET', KEYS[1], ARGV[1])
if not last then return -1 end
last = tonumber(last) or error('ERR the counter of fencing tokens is no number')
if last < tonumber(ARGV[2]) then return -2 end
local time, locks, queues, most = call('TIME'), (#KEYS - 1) / 2, {}, 1
local now = time[1] * 1000000 + time[2]
for i = 1, locks do
  queues[i] = KEYS[2 * i + 1]
  most = math.max(most, tonumber(ARGV[4 * i + 2]))
end
local share = math.max(1, math.floor(math.min(most, now - last) / locks))
local counts, sum = {}, 0
for i = 1, locks do
  counts[i] = math.min(tonumber(ARGV[4 * i + 2]), share)
  sum = sum + counts[i]
end
local top = math.max(last + sum, now)
if not (top <= 9007199254740991) then error('SPENT the counter of fencing tokens is at its end') end
last = top - sum
local nobody_waits, answers = call('EXISTS', unpack(queues)) == 0, {}
call('HSET', KEYS[1], ARGV[1], string.format('%d', top))
for i = 1, locks do
  local token, granted = last + counts[i], 0
  last = token
  if nobody_waits or call('EXISTS', queues[i]) == 0 then
    local value = ARGV[4 * i - 1] .. ':' .. string.format('%d', token) .. ARGV[4 * i]
    local set = pcall('SET', KEYS[2 * i], value, 'PX', ARGV[4 * i + 1], 'NX')
    if set and set.ok then
      granted = counts[i]
    else
      -- As acquire.lua.
      value = pcall('GET', KEYS[2 * i])
      if type(value) == 'string' and string.sub(value, -6) == ',idles' then
        pcall('PUBLISH', 'tenure:h:' .. string.sub(value, 1, 16), 'a' .. string.sub(value, 17, 48))
      end
    end
  end
  answers[2 * i - 1], answers[2 * i] = granted > 0 and token or 0, granted
end
return answers
