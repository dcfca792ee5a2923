-- A place in the queue. After gate, enter, begin and sides.
-- ARGV, reply  those of claim
local HEAD = 1024 -- a value of Tenure is shorter; a foreign one may have megabytes, which no waiter reads

-- Takes or keeps a place, if the owner waits; returns what is in front of it. The queue is written last: a place that is in
-- the other sets only does not count, and an error before that has taken nothing (L9).
local function stand(value)
  local kind, ahead, before, left = 3, 0, nil, value and call('PTTL', lock) or 0
  if wait ~= 'n' then
    local waiting = call('ZCARD', queue)
    local is_short = waiting == 0 or call('PTTL', queue) < tonumber(place_ttl)
    if waiting >= tonumber(places_max) and not call('ZRANK', queue, owner) then return {4, waiting} end
    local is_new = call('ZADD', places, string.format('%d', now + place_ttl), owner) == 1
    -- Queue and places have the same members, and so the same expiry; that of the queue is set last.
    local over = is_short and string.format('%.0f', place_ttl + SLACK)
    local bounded = over and redis.pcall('PEXPIRE', places, over)
    wrote = wrote or not is_new
    if type(bounded) == 'table' then
      if is_new then call('ZREM', places, owner) end
      error(bounded.err)
    end
    local rank, counts = not is_new and call('ZRANK', queue, owner), false
    if not rank then
      rank = waiting
      local last, class = waiting > 0 and tonumber(call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2]), tonumber(ARGV[11] or 0)
      if last and last >= (class + 1) * CLASS and class < 1 then
        -- It comes before those of lower classes.
        rank = classes().ahead_of(class)
        local before = string.format('%d', rank - 1)
        last = rank > 0 and tonumber(call('ZRANGE', queue, before, before, 'WITHSCORES')[2])
      end
      local arrival = math.max(last or class * CLASS, class * CLASS) + 1
      call('HSET', who, owner, mode .. ':' .. wait .. ':' .. now .. ':' .. ARGV[9])
      call('ZADD', queue, string.format('%.0f', arrival), owner)
      wrote, counts = true, class ~= 0
      -- Shows the holder's release that there are waiters. Nothing is ever written to a foreign value.
      local is_ours = value and string.match(value, '^%x+():%d+:%d+:[^+]*$') == 49
      if is_ours and string.byte(value, -1) ~= 43 then
        -- A holder that may be idle receives a hint about its first waiter here too: acquire.lua, which sends it, may have
        -- been skipped.
        if string.sub(value, -6) == ',idles' then
          redis.pcall('PUBLISH', 'tenure:h:' .. string.sub(value, 1, 16), 'a' .. string.sub(value, 17, 48))
        end
        redis.pcall('APPEND', lock, '+')
      end
    end
    if over then
      call('PEXPIRE', queue, over)
      if call('PTTL', who) < place_ttl + SLACK then call('PEXPIRE', who, over) end
    end
    -- Last, because it makes the key if there is none.
    if counts and call('HEXISTS', who, 'passed') == 0 then call('HSET', who, 'passed', '0') end
    kind, ahead, before = 2, wait == 't' and rank or 0, rank
  end
  local seen, soonest = {before}, left < 0 and retry_max or left
  if value == SHARED then
    local ends = call('ZRANGE', shared, '0', '0', 'WITHSCORES')[2]
    local last = call('ZRANGE', shared, '-1', '-1')[1]
    if ends then soonest = ends - now end
    seen = {last, last and call('HGET', who, last)}
  end
  -- A waiter far back need not know which place expires next: else all of them would ask at that moment (L6).
  local dies = nil
  if ahead < 16 then
    -- Its own place expires later than it did.
    if not first or first[1] == owner then first = call('ZRANGE', places, '0', '0', 'WITHSCORES') end
    dies = first[2]
  end
  local after = math.min(soonest + claim_ttl * ahead, dies and dies - now or retry_max, retry_max)
  return {kind, ahead, math.max(1, after), value and string.sub(value, 1, HEAD), left, seen[1], seen[2]}
end

local counted = may_grant()
if not counted then return {0} end
local changed
value, changed = settle(value)
-- Most claims are exclusive, find an exclusive holder, and nothing has changed: the other functions need not be defined.
if mode == 'x' and not changed and value ~= SHARED then return stand(value) end
