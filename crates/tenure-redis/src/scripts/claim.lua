-- Takes a lock, or takes or keeps a place. After mint, lock, enter and state.
-- ARGV  3 owner  4 ttl in ms  5 mode  6 wait (n none, w wake, t turn)  7 tokens wanted  8 since in ms  9 label
--       10 how far this server has counted for this client, or 0
-- reply {1, first token, count} · {2, ahead, retry_after, ...} queued · {3, 0, retry_after, ...} busy
--       {4, how many wait} the queue is full · {0} the gate is closed · {5} the server was put back: tell rewound.lua
--       ... is one holder: value, ms left (-1 no end), or SHARED, ms left, owner, details
-- Order of writes: an orphan in the queue is harmless, an orphan lock is not (H1.12).
local function enter_shared(ends, value, leave)
  local token, count = mint(tonumber(ARGV[7]))
  if not token then return {count} end
  if leave then leave(owner) end
  local last = string.format('%.0f', token + count - 1)
  if value ~= SHARED then together().forget() end
  if not ends then together().count(limit_of(mode)) end
  call('HSET', who, owner, mode .. ':' .. last .. ':' .. ARGV[8] .. ':' .. ARGV[9])
  call('ZADD', shared, math.max(now + ttl, ends or 0), owner)
  touch(shared, ttl)
  together().cover()
  return {1, token, count}
end

-- True if somebody live that waits for a turn is in front of this rank, whatever its mode (L7).
local function is_barred(rank)
  for at = 0, rank - 1, 32 do
    local owners = call('ZRANGE', queue, at, math.min(at + 31, rank - 1))
    if not owners[1] then return false end
    for _, details in ipairs(call('HMGET', who, unpack(owners))) do
      if details and string.match(details, '^[^:]*:t:') then return true end
    end
  end
  return false
end

local function standing(kind, ahead, value)
  local left = value and call('PTTL', lock) or 0
  local seen, soonest = {}, left < 0 and retry_max or left
  if value == SHARED then
    local ends = call('ZRANGE', shared, '0', '0', 'WITHSCORES')[2]
    local last = call('ZRANGE', shared, '-1', '-1')[1]
    if ends then soonest = ends - now end
    seen = {last, last and call('HGET', who, last)}
  end
  -- Whoever stands far back need not know which place ends next: else all of them would ask at that moment (L6).
  local dies = nil
  if ahead < 16 then
    -- Its own place ends later than it did.
    if not first or first[1] == owner then first = call('ZRANGE', places, '0', '0', 'WITHSCORES') end
    dies = first[2]
  end
  local after = math.min(soonest + claim_ttl * ahead, dies and dies - now or retry_max, retry_max)
  return {kind, ahead, math.max(1, after), value, left, seen[1], seen[2]}
end

if not may_grant() then return {0} end

local changed
value, changed = settle(value)
-- Who takes a free lock alone leaves nothing to those that are only woken.
if changed then value = hand_on(value, owner, not value and mode == 'x' and 0 or nil) end
if is_owner(value, owner) then return enter_alone(value) end
local ends = value == SHARED and call('ZSCORE', shared, owner)
if ends then return enter_shared(tonumber(ends), value) end

local count, smallest = holders(value)
if count < math.min(smallest, limit_of(mode)) then
  local rank = call('ZRANK', queue, owner)
  if not is_barred(rank or call('ZCARD', queue)) then
    local leave = rank and drop_place
    if mode == 'x' then return enter_alone(nil, leave) end
    return enter_shared(nil, value, leave)
  end
end

if wait == 'n' then return standing(3, 0, value) end
-- In the queue last: a place that is in the others only is none, and an error before that has taken nothing (L9).
local rank = call('ZADD', places, string.format('%d', now + place_ttl), owner) == 0 and call('ZRANK', queue, owner)
if rank then
  touch(places, place_ttl)
else
  rank = call('ZCARD', queue)
  if rank >= tonumber(places_max) then
    call('ZREM', places, owner)
    return {4, rank}
  end
  local last = call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2]
  local arrival = (tonumber(last) or 0) + 1
  call('HSET', who, owner, mode .. ':' .. wait .. ':' .. now .. ':' .. ARGV[9])
  call('ZADD', queue, string.format('%d', arrival), owner)
  touch(places, place_ttl)
  -- Tells the holder's release that there are waiters. Nothing is ever written to a foreign value.
  local is_ours = value and string.byte(value, 49) == 58
  if is_ours and string.byte(value, -1) ~= 43 and string.match(value, '^%x+:%d+:%d+:[^+]*$') then
    -- A holder that may have nothing to do hears of its first waiter here, too: acquire.lua, which tells it, may have been skipped.
    if string.sub(value, -6) == ',idles' then
      redis.pcall('PUBLISH', 'tenure:h:' .. string.sub(value, 1, 16), 'a' .. string.sub(value, 17, 48))
    end
    redis.pcall('APPEND', lock, '+')
  end
end
return standing(2, wait == 't' and rank or 0, value)
