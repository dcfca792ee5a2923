-- Takes the lock, or takes or keeps a place. After queue.
-- ARGV  4 ttl in ms  5 place ttl in ms
-- reply token; 0 queued; -1 the gate is closed
local function enter()
  local token = call('HINCRBY', one, gate, 1)
  if token < 1000000 then
    call('HDEL', one, gate)
    return -1
  end
  call('SET', lock, me .. ':' .. string.format('%.0f', token), 'PX', ARGV[4])
  return token
end

local value = call('GET', lock)
if is_mine(value) then return enter() end
if call('HEXISTS', one, gate) == 0 then return -1 end
settle()
if not value then
  hand_on(me)
  value = call('GET', lock)
  if is_mine(value) or not value then return enter() end
end
if not call('ZSCORE', queue, me) then
  local last = call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  call('ZADD', queue, (tonumber(last) or 0) + 1, me)
end
call('ZADD', places, now + ARGV[5], me)
return 0
