-- The other keys of one lock: the queue, the places in it, and the shared holders. After lock.
-- Each of these keys expires, at the latest a minute after the furthest lease or place in it (L8). A client that may not
-- set that expiry writes nothing there.
-- Numbers go to commands as text: Redis prints a Lua number with all its digits, which costs as much as a small command.
local claim_ttl, place_ttl, retry_max, places_max, drop = string.match(ARGV[2], '(%d+):(%d+):(%d+):(%d+):(%d)')
local now, first -- since settle: the time, and the place that expires first, with its expiry
local SLACK = 60000

local function drop_place(owner)
  call('ZREM', queue, owner)
  wrote = true
  call('ZREM', places, owner)
  call('HDEL', who, owner)
  first = nil
end

-- The score of a place in the queue is its class and its arrival: from -2, -1, 0 and 1 times CLASS, of urgent, high, normal and
-- low ones. At -3 times CLASS, plus its class, is the place that has waited longest, after 8 grants to others. A version that
-- knows no class gives its places the largest score of all. `passed` in `who` counts the grants to waiters since one that had
-- waited longest; without it, all places are normal.
local CLASS = 1099511627776 -- 2^40

-- What only waiters of several classes need, as below.
local classed
local function classes()
  if classed then return classed end
  classed = {}

  -- The number of places that are granted the lock before a newcomer of this class.
  function classed.ahead_of(class)
    local from = string.format('%.0f', (class + 1) * CLASS)
    local next = class < 1 and call('ZRANGEBYSCORE', queue, from, '+inf', 'LIMIT', '0', '1')[1]
    return next and call('ZRANK', queue, next) or call('ZCARD', queue)
  end

  -- Moves the place that has waited longest to the front, if its turn has come. True if it did.
  function classed.advance(passed)
    if passed < 8 then return false end
    local front = call('ZRANGE', queue, '0', '0', 'WITHSCORES')
    if not front[2] or tonumber(front[2]) < -2 * CLASS then return false end
    local longest, came, at
    for class = 1, -2, -1 do
      local from, below = string.format('%.0f', class * CLASS), string.format('(%.0f', (class + 1) * CLASS)
      local first = call('ZRANGEBYSCORE', queue, from, class == 1 and '+inf' or below, 'LIMIT', '0', '1')[1]
      local since = first and tonumber(string.match(call('HGET', who, first) or '', '^[^:]*:t:(%d+):'))
      if since and (not came or since < came) then longest, came, at = first, since, class end
    end
    if not longest then return false end
    call('ZADD', queue, string.format('%.0f', -3 * CLASS + at + 2), longest)
    wrote = true
    return true
  end

  -- Counts a grant to this owner, which has a place and will lose it, or has none.
  function classed.count(owner, passed, has_place)
    local at = has_place and tonumber(call('ZSCORE', queue, owner))
    if call('ZCARD', queue) - (at and 1 or 0) == 0 then
      if passed then call('HDEL', who, 'passed') end
    else
      call('HSET', who, 'passed', at and at < -2 * CLASS and '0' or string.format('%d', (passed or 0) + 1))
    end
  end

  return classed
end

-- What only shared holders need, defined at its first use: to define a function costs a script a third of a command.
local made
local function together()
  if made then return made end
  made = {}

  -- Several permits are "0.", ten digits of their limit, and their number: the limit 0 for a version that counts holders, which
  -- lets them hold alone (L1).
  function made.limit_of(mode)
    return mode == 'x' and 1 or mode == 's' and math.huge or tonumber(string.match(mode, '^0%.(%d%d%d%d%d%d%d%d%d%d)') or mode)
  end

  function made.permits_of(mode)
    return tonumber(string.match(mode, '^0%.%d%d%d%d%d%d%d%d%d%d(%d+)') or 1)
  end

  -- As `Mode::covers`.
  function made.covers(held, other)
    return other ~= 'x' and made.permits_of(other) <= made.permits_of(held) and made.limit_of(held) <= made.limit_of(other)
  end

  function made.mode_of(owner)
    return string.match(call('HGET', who, owner) or 's:', '^([^:]*):')
  end

  -- `least` in `who` is the smallest limit among the shared holders and how many have it. It is 0 for several permits.
  function made.least()
    local limit, count = string.match(call('HGET', who, 'least') or '', '(%d+):(%d+)')
    return tonumber(limit) or math.huge, tonumber(count) or 0
  end

  -- How many permits are taken, and the smallest limit among the holders.
  function made.holders(value)
    if not value then return 0, math.huge end
    if value ~= SHARED then return 1, 1 end
    local count = call('ZCARD', shared)
    if count == 0 then return 1, 1 end -- its holders were lost: wait until it expires
    local smallest = made.least()
    if smallest > 0 then return count, smallest end
    count, smallest = 0, math.huge
    for _, owner in ipairs(call('ZRANGE', shared, '0', '-1')) do
      local mode = made.mode_of(owner)
      count, smallest = count + made.permits_of(mode), math.min(smallest, made.limit_of(mode))
    end
    return count, smallest
  end

  function made.counted_limit(mode)
    return made.permits_of(mode) > 1 and 0 or made.limit_of(mode)
  end

  function made.count(mode)
    local limit = made.counted_limit(mode)
    local smallest, count = made.least()
    if limit < smallest then smallest, count = limit, 0 end
    if limit == smallest and limit ~= math.huge then
      call('HSET', who, 'least', string.format('%.0f:%d', limit, count + 1))
    end
  end

  function made.recount()
    call('HDEL', who, 'least')
    for _, owner in ipairs(call('ZRANGE', shared, '0', '-1')) do
      made.count(made.mode_of(owner))
    end
  end

  function made.drop(owner)
    local limit = made.counted_limit(made.mode_of(owner))
    call('ZREM', shared, owner)
    wrote = true
    call('HDEL', who, owner)
    local smallest, count = made.least()
    if limit == smallest and limit ~= math.huge then
      if count > 1 then
        call('HSET', who, 'least', string.format('%.0f:%d', limit, count - 1))
      else
        made.recount()
      end
    end
  end

  -- Removes what is left of shared holders whose lock has ended or was taken from them. They count only while its value is
  -- SHARED.
  function made.forget()
    for _, owner in ipairs(call('ZRANGE', shared, '0', '-1')) do
      -- The owner may be waiting again by now.
      if not call('ZSCORE', places, owner) then call('HDEL', who, owner) end
    end
    call('HDEL', who, 'least')
    call('DEL', shared)
  end

  -- The key of the lock lives as long as the longest shared lease, so that foreign clients are not granted it. It is
  -- deleted with the last one.
  function made.cover()
    local last = call('ZRANGE', shared, '-1', '-1', 'WITHSCORES')
    if last[2] then
      call('SET', lock, SHARED, 'PX', math.max(1, last[2] - now))
      return SHARED
    end
    call('DEL', lock)
    return nil
  end

  -- Adds an owner with `mode:rest` to the shared holders, for `left` ms, or until `ends` if it is one already and that is
  -- later. Its place is removed, if it has one. `value` is the value of the lock.
  function made.share(owner, mode, rest, left, value, ends, has_place)
    if value ~= SHARED then made.forget() end
    local is_short = value ~= SHARED or call('PTTL', shared) < left
    local over, lasts = string.format('%.0f', left + SLACK), nil
    if is_short then
      lasts = string.format('%.0f', math.max(left + SLACK, call('PTTL', who)))
      -- Before all else, so that a missing right changes nothing; and again below, because the key may not exist yet.
      call('PEXPIRE', who, lasts)
    end
    if has_place then
      call('ZREM', queue, owner)
      wrote = true
      call('ZREM', places, owner)
      first = nil
    end
    call('ZADD', shared, math.max(now + left, ends or 0), owner)
    wrote = true
    if is_short then call('PEXPIRE', shared, over) end
    call('HSET', who, owner, mode .. ':' .. rest)
    if is_short then call('PEXPIRE', who, lasts) end
    if not ends then made.count(mode) end
    return made.cover()
  end

  return made
end

-- Removes what has expired. Takes the lock's value; returns it, and whether anything changed.
local function settle(value)
  local changed, time = false, call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  first = call('ZRANGE', places, '0', '0', 'WITHSCORES')
  while first[2] and tonumber(first[2]) <= now do
    drop_place(first[1])
    first, changed = call('ZRANGE', places, '0', '0', 'WITHSCORES'), true
    -- An empty queue has passed no waiter.
    if not first[1] then call('HDEL', who, 'passed') end
  end
  if value == SHARED then
    local over = call('ZRANGEBYSCORE', shared, '-inf', now)
    for _, owner in ipairs(over) do
      call('ZREM', shared, owner)
      wrote = true
      call('HDEL', who, owner)
    end
    if over[1] then
      together().recount()
      value, changed = together().cover(), true
    end
  end
  return value, changed or not value
end
