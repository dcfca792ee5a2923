-- Extends one lease that renew.lua could not; never shortens, never re-creates (H2.4, hazard 23).
-- After begin and handoff; before end.
-- ARGV  3 owner  4 ttl in ms
-- reply 1 extended; 0 does not hold
-- The lock is extended first: a full memory does not refuse that, and then it does not refuse the rest.
local owner, ttl = ARGV[3], tonumber(ARGV[4])
local changed
value, changed = settle(value)
if changed then value = hand_on(value, nil) end
if is_owner(value, owner) and string.sub(value, 50, 51) ~= '0:' then
  if call('PTTL', lock) < ttl then call('PEXPIRE', lock, ttl) end
  return 1
end
local ends = value == SHARED and call('ZSCORE', shared, owner)
if not ends or string.match(call('HGET', who, owner) or '', '^[^:]*:([^:]*):') == '0' then return 0 end
call('PEXPIRE', lock, math.max(ttl, call('PTTL', lock)))
wrote = true
call('ZADD', shared, math.max(tonumber(ends), now + ttl), owner)
if call('PTTL', shared) < ttl then
  call('PEXPIRE', who, string.format('%.0f', math.max(ttl + SLACK, call('PTTL', who))))
  call('PEXPIRE', shared, string.format('%.0f', ttl + SLACK))
end
return 1
