-- The state of one lock that is more than its plain key, and the hand-off. Put before the scripts that need it.
-- KEYS  1 lock  2 queue (zset: owner by arrival)  3 one  4 places (zset: owner by end)
--       5 shared (zset: holder by end)  6 who (hash: owner to "mode:wait or token:since:label")
-- ARGV  1 gate  2 "claim_ttl:place_ttl:retry_max:places_max:drop", in ms
-- Numbers go to commands as text: Redis prints a Lua number with all its digits, which costs as much as a small command.
-- Times are ms of the server's clock. A mode is x (exclusive), s (shared) or a limit. A token 0 is a holder that was
-- handed the lock and has not entered. Shared holders count only while the lock itself says SHARED.
local call = redis.call
local SHARED = 'tenure:shared'
local lock, queue, places, shared, who = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6]
local claim_ttl, place_ttl, retry_max, places_max, drop = string.match(ARGV[2], '(%d+):(%d+):(%d+):(%d+):(%d)')
local now -- since settle
local DAY = 86400000

local function limit_of(mode)
  return mode == 'x' and 1 or mode == 's' and math.huge or tonumber(mode)
end

local function is_owner(value, owner)
  return value and string.sub(value, 1, 48) == owner and string.byte(value, 49) == 58
end

-- The side keys outlive whoever uses them, a lease of 24 h too, and no name is kept for ever.
local function touch(key)
  if call('PTTL', key) < 2 * DAY then
    redis.pcall('PEXPIRE', key, 3 * DAY)
    redis.pcall('PEXPIRE', who, 3 * DAY)
  end
end

-- `least` in `who` is the smallest limit among the shared holders and how many have it.
local function least()
  local limit, count = string.match(call('HGET', who, 'least') or '', '(%d+):(%d+)')
  return tonumber(limit) or math.huge, tonumber(count) or 0
end

local function count_limit(limit)
  local smallest, count = least()
  if limit < smallest then smallest, count = limit, 0 end
  if limit == smallest and limit ~= math.huge then
    call('HSET', who, 'least', string.format('%.0f:%d', limit, count + 1))
  end
end

local function recount_limits()
  call('HDEL', who, 'least')
  for _, owner in ipairs(call('ZRANGE', shared, '0', '-1')) do
    local mode = string.match(call('HGET', who, owner) or 's:', '^([^:]*):')
    count_limit(limit_of(mode))
  end
end

local function drop_place(owner)
  call('ZREM', queue, owner)
  call('ZREM', places, owner)
  call('HDEL', who, owner)
end

local function drop_shared(owner)
  local limit = limit_of(string.match(call('HGET', who, owner) or 's:', '^([^:]*):'))
  call('ZREM', shared, owner)
  call('HDEL', who, owner)
  local smallest, count = least()
  if limit == smallest and limit ~= math.huge then
    if count > 1 then
      call('HSET', who, 'least', string.format('%.0f:%d', limit, count - 1))
    else
      recount_limits()
    end
  end
end

-- What is left of shared holders whose lock has ended or was taken from them: they count only while it says SHARED.
local function forget_shared()
  for _, owner in ipairs(call('ZRANGE', shared, '0', '-1')) do
    -- It may wait again by now.
    if not call('ZSCORE', places, owner) then call('HDEL', who, owner) end
  end
  call('DEL', shared)
  call('HDEL', who, 'least')
end

-- The plain key lives as long as the longest shared lease, so that foreign clients stay out; gone with the last one.
local function cover_shared()
  local last = call('ZRANGE', shared, '-1', '-1', 'WITHSCORES')
  if last[2] then
    call('SET', lock, SHARED, 'PX', math.max(1, last[2] - now))
    return SHARED
  end
  call('DEL', lock)
  return nil
end

-- Removes what is over. Takes and returns the lock's value, and whether anything changed.
local function settle(value)
  local changed, time = false, call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  for _, owner in ipairs(call('ZRANGEBYSCORE', places, '-inf', string.format('%d', now))) do
    drop_place(owner)
    changed = true
  end
  if value == SHARED then
    local over = call('ZRANGEBYSCORE', shared, '-inf', now)
    for _, owner in ipairs(over) do
      call('ZREM', shared, owner)
      call('HDEL', who, owner)
    end
    if over[1] then
      recount_limits()
      value, changed = cover_shared(), true
    end
  end
  return value, changed or not value
end

-- Tells a process that asking again may help one of its owners; answers how many connections heard it.
-- b: it is the first one behind those who were handed the lock, and need not ask before their claim ttl is over.
-- A missing right must not stop a script in the middle: then everybody counts as heard, and enters by its timer.
local function wake(owner, kind)
  local heard = redis.pcall('PUBLISH', 'tenure:p:' .. string.sub(owner, 1, 16), kind .. string.sub(owner, 17))
  return type(heard) == 'number' and heard or 1
end

-- How many hold, and the smallest limit among them.
local function holders(value)
  if not value then return 0, math.huge end
  if value ~= SHARED then return 1, 1 end
  local count = call('ZCARD', shared)
  if count == 0 then return 1, 1 end -- its holders were lost: wait for its end
  return count, (least())
end

-- It has not asked for longer than any waiter sleeps. Who is only unheard may have lost its connection a moment ago.
local function is_dead(owner)
  local last = tonumber(call('ZSCORE', places, owner) or 0) - place_ttl
  return last + retry_max + 500 < now
end

-- Makes all leading waiters that fit holders for the claim ttl, wakes them and the first one behind (H1.1, H1.6).
-- Those for whom nobody listens are passed, and dropped if they are dead (hazard 33). `me` asks already. Returns the
-- lock's value, and true if the gate is closed.
local function hand_on(value, me)
  if not may_grant() then return value, true end
  local count, smallest = holders(value)
  local bells, at, chunk = 2, 0, 2
  while true do
    local owners = call('ZRANGE', queue, string.format('%d', at), string.format('%d', at + chunk - 1))
    if not owners[1] then return value end
    local details = call('HMGET', who, unpack(owners))
    for i, owner in ipairs(owners) do
      local mode, kind, rest = string.match(details[i] or '', '^([^:]*):([^:]*):(.*)$')
      if not mode then
        drop_place(owner)
      elseif kind == 'w' then
        if bells > 0 then wake(owner, 'a') end
        bells, at = bells - 1, at + 1
      else
        local limit = limit_of(mode)
        local fits = count < math.min(smallest, limit)
        if owner ~= me and wake(owner, fits and 'a' or value and 'b' or 'a') == 0 and drop == '1' then
          if is_dead(owner) then drop_place(owner) else at = at + 1 end
        elseif not fits then
          return value
        else
          drop_place(owner)
          count, smallest = count + 1, math.min(smallest, limit)
          if mode == 'x' then
            local flag = (owners[i + 1] or #owners == chunk) and '+' or ''
            value = owner .. ':0:' .. rest .. flag
            call('SET', lock, value, 'PX', claim_ttl)
          else
            if value ~= SHARED then forget_shared() end
            call('ZADD', shared, now + claim_ttl, owner)
            call('HSET', who, owner, mode .. ':0:' .. rest)
            count_limit(limit)
            touch(shared)
            value = cover_shared()
          end
        end
      end
    end
    chunk = 32
  end
end
