-- Lifts the counter of a lock to a token that another node of the quorum minted, while this owner holds it here (H3.3).
-- After count.
-- KEYS  1 lock  2 counter  3 record
-- ARGV  1 gate  2 owner  3 the token
-- reply 1 the counter has reached the token; 0 this owner does not hold the lock here, alone; -1 the gate is closed
-- An owner that was handed the lock and has not acquired it yet has the token 0, and holds nothing yet. The holder's value
-- gets the token that the quorum granted, and keeps its expiry and the flag for waiters. The lock's SET is the last write.
local call = redis.call
if call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return -1 end
local value = call('GET', KEYS[1])
local token, rest = string.match(value or '', '^%x+:(%d+)(:.*)$')
if not token or token == '0' or string.sub(value, 1, 49) ~= ARGV[2] .. ':' then return 0 end
local to, left = tonumber(ARGV[3]), call('PTTL', KEYS[1])
local last = countable(math.max(to, tonumber(call('GET', KEYS[2]) or '0')))
call('SET', KEYS[2], last, 'PX', 86400000)
if tonumber(token) < to then
  -- KEEPTTL does not exist before Redis 6.
  local text = ARGV[2] .. ':' .. string.format('%.0f', to) .. rest
  if left < 0 then
    call('SET', KEYS[1], text)
  else
    call('SET', KEYS[1], text, 'PX', math.max(1, left))
  end
end
return 1
