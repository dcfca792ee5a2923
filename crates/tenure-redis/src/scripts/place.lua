-- Takes or keeps a place in the queue. After gate, enter and sides.
-- ARGV, reply  those of claim
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

-- In the queue last: a place that is in the others only is none, and an error before that has taken nothing (L9).
local function queue_up(value)
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
end

if not may_grant() then return {0} end
local changed
value, changed = settle(value)
-- Most want it alone, find another one that holds it alone, and nothing changed: the rest need not be made.
if mode == 'x' and not changed and value ~= SHARED then
  return wait == 'n' and standing(3, 0, value) or queue_up(value)
end
