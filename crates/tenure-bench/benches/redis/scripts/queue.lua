-- A fair queue with hand-off by hand: what it guarantees, Tenure does. Put before the two scripts that need it.
-- KEYS  1 lock ("owner:token")  2 queue (zset: owner by arrival)  3 gate and counter (hash)  4 places (zset: owner by end)
-- ARGV  1 gate  2 owner  3 claim ttl in ms
-- A token 0 is a holder that was handed the lock and has not entered. Exclusive locks only, no label, no count of places.
local call = redis.call
local lock, queue, one, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local gate, me, claim_ttl = ARGV[1], ARGV[2], ARGV[3]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function is_mine(value)
  return value and string.sub(value, 1, 48) == me
end

local function drop(owner)
  call('ZREM', queue, owner)
  call('ZREM', places, owner)
end

-- Waiters whose place was not kept are gone.
local function settle()
  for _, owner in ipairs(call('ZRANGEBYSCORE', places, '-inf', now)) do drop(owner) end
end

-- Gives a free lock to the first waiter and tells it and the first one behind; a waiter that nobody listens for is gone.
local function hand_on(asks)
  if call('HEXISTS', one, gate) == 0 then return end
  local given = false
  while true do
    local owners = call('ZRANGE', queue, 0, 1)
    if not owners[1] then return end
    for _, owner in ipairs(owners) do
      local text = (given and 'b' or 'a') .. string.sub(owner, 17)
      if owner ~= asks and call('PUBLISH', 'bench:' .. string.sub(owner, 1, 16), text) == 0 then
        drop(owner)
      elseif given then
        return
      else
        drop(owner)
        call('SET', lock, owner .. ':0', 'PX', claim_ttl)
        given = true
      end
    end
  end
end
