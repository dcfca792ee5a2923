-- Acquires a lock, or takes or keeps a place. After enter, begin, place and handoff; before end.
-- ARGV  3 owner  4 ttl in ms  5 mode  6 wait (n none, w wake, t turn)  7 tokens wanted  8 since in ms  9 label
--       10 the largest token that this server granted to this client, or 0
--       11 its class, if it is not the default: -2 urgent, -1 high, 1 low
-- reply {1, first token, count} · {2, ahead, retry_after, ...} queued · {3, 0, retry_after, ...} busy
--       {4, how many wait} the queue is full · {0} the gate is closed · {5} the server was put back: call rewound.lua
--       {7, mode} this owner holds, in this mode, which does not cover that of the claim
--       ... is one holder: value, ms left (-1 no end), how many wait before it, or SHARED, ms left, owner, details
-- Order of writes: an orphan in the queue is harmless, an orphan lock is not (H1.12).
local function enter_shared(ends, value, has_place, counts)
  local token, count = mint(tonumber(ARGV[7]))
  if not token then return {count} end
  if counts then counts() end
  local rest = string.format('%.0f', token + count - 1) .. ':' .. ARGV[8] .. ':' .. ARGV[9]
  together().share(owner, mode, rest, ttl, value, ends, has_place)
  return {1, token, count}
end

-- True if a live waiter for a turn is in front of this rank, whatever its mode (L7).
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

-- A server that was put back hands nothing on: `mint` would detect it only after the hand-off.
local known = changed and tonumber(counted)
if known and known < tonumber(ARGV[10]) then return {5} end

-- An exclusive claim of a free lock leaves nothing to waiters that are only woken.
if changed then value = hand_on(value, owner, not value and mode == 'x' and 0 or nil) end
if is_owner(value, owner) then return enter_alone(value) end
local ends = value == SHARED and call('ZSCORE', shared, owner)
if ends then
  local held, last = string.match(call('HGET', who, owner) or '', '^([^:]*):([^:]*)')
  if not held or held == mode or together().covers(held, mode) then
    mode = held or mode
    return enter_shared(tonumber(ends), value)
  end
  if last ~= '0' then return {7, held} end
  -- It was handed what it does not ask for any more.
  together().drop(owner)
  value = hand_on(together().cover(), owner)
end

local count, smallest, limit, permits = 0, math.huge, 1, 1
if value then count, smallest = together().holders(value) end
if mode ~= 'x' then limit, permits = together().limit_of(mode), together().permits_of(mode) end
if count + permits <= math.min(smallest, limit) then
  local rank = call('ZRANK', queue, owner)
  local ahead, counts = rank or call('ZCARD', queue), nil
  if ahead > 0 or rank then
    local passed = tonumber(call('HGET', who, 'passed'))
    if passed or ARGV[11] then
      if passed and classes().advance(passed) then rank = call('ZRANK', queue, owner) end
      ahead = rank or classes().ahead_of(tonumber(ARGV[11] or 0))
      counts = function() classes().count(owner, passed, rank) end
    end
  end
  if not is_barred(ahead) then
    if mode ~= 'x' then return enter_shared(nil, value, rank, counts) end
    if not counts then return enter_alone(nil, rank and drop_place) end
    return enter_alone(nil, function(owner)
      counts()
      if rank then drop_place(owner) end
    end)
  end
end

return stand(value)
