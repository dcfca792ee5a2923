-- The hand-off. After gate, begin and sides.

-- Sends a process the hint that one of its owners should ask again. Returns how many connections received it.
-- b: the owner is the first one behind those that were handed the lock; it need not ask before their claim ttl has expired.
-- A missing right must not stop a script in the middle: then each waiter counts as reached, and acquires by its own timer.
local function wake(owner, kind)
  local heard = redis.pcall('PUBLISH', 'tenure:p:' .. string.sub(owner, 1, 16), kind .. string.sub(owner, 17))
  return type(heard) == 'number' and heard or 1
end

-- Makes all leading waiters that fit holders for the claim ttl, wakes them and the first one behind (H1.1, H1.6).
-- A waiter for which no connection listens is passed, and dropped if it is dead (hazard 33). `me` is asking already.
-- `bells` is how many of the waiters that are only woken are woken: 2, one more in case the first is dead. Returns the
-- lock's value, and true if the gate is closed.
local function hand_on(value, me, bells)
  if not may_grant() then return value, true end
  local count, smallest = 0, math.huge
  if value then count, smallest = together().holders(value) end
  local at, chunk, passed = 0, 2, nil
  bells = bells or 2
  while true do
    local owners = call('ZRANGE', queue, string.format('%d', at), string.format('%d', at + chunk - 1))
    if not owners[1] then
      if at == 0 and passed then call('HDEL', who, 'passed') end
      return value
    end
    local n = #owners
    owners[n + 1] = 'passed'
    local details = call('HMGET', who, unpack(owners))
    owners[n + 1] = nil
    passed = tonumber(details[n + 1])
    if passed and classes().advance(passed) then owners, at = {}, 0 end
    for i, owner in ipairs(owners) do
      local mode, kind, rest = string.match(details[i] or '', '^([^:]*):([^:]*):(.*)$')
      if not mode then
        drop_place(owner)
      elseif kind == 'w' then
        if bells > 0 then wake(owner, 'a') end
        bells, at = bells - 1, at + 1
      else
        local limit, permits = 1, 1
        if mode ~= 'x' then limit, permits = together().limit_of(mode), together().permits_of(mode) end
        local fits = count + permits <= math.min(smallest, limit)
        if owner ~= me and wake(owner, fits and 'a' or value and 'b' or 'a') == 0 and drop == '1' then
          -- Dead: it has not asked for longer than any waiter sleeps. A waiter that is only not reached may have lost its
          -- connection a moment ago.
          local last = tonumber(call('ZSCORE', places, owner) or 0) - place_ttl
          if last + retry_max + 500 < now then drop_place(owner) else at = at + 1 end
        elseif not fits then
          return value
        else
          count, smallest = count + permits, math.min(smallest, limit)
          if passed then
            classes().count(owner, passed, true)
            passed = tonumber(call('HGET', who, 'passed'))
          end
          local is_due = passed and passed >= 8
          if mode == 'x' then
            drop_place(owner)
            -- A waiter that was passed keeps waiting: the release of this holder hands it the lock.
            local flag = (at > 0 or owners[i + 1] or #owners == chunk) and '+' or ''
            value = owner .. ':0:' .. rest .. flag
            call('SET', lock, value, 'PX', claim_ttl)
          else
            value = together().share(owner, mode, '0:' .. rest, tonumber(claim_ttl), value, nil, true)
          end
          -- The next one may be another.
          if is_due then break end
        end
      end
    end
    chunk = 32
  end
end
