-- Takes the lock from its holders, raises the fence, notifies these holders and hands on. After fence, begin and handoff;
-- before end.
-- ARGV  3 from whom: an owner, '' for all of Tenure, '*' for foreign clients as well
-- reply flat list: now, then the lock's value and ms left if it was held alone (else false, 0), then per shared holder:
--       owner, details, end
-- An owner that was handed the lock and has not acquired it yet keeps it: it holds nothing yet. Where no token is left,
-- nothing is broken.
local whom = ARGV[3]
local is_all = #whom < 48
local is_foreign = value and value ~= SHARED and string.match(value, '^%x+():%d+:') ~= 49
if is_foreign and whom == '' then error('FOREIGN the value is of another client') end
if not is_all and not (is_owner(value, whom) or value == SHARED and call('ZSCORE', shared, whom)) then return {0, false, 0} end
raise()
wrote = true
local robbed = {0, false, 0}
if value and value ~= SHARED and (is_foreign or not string.match(value, '^%x+:0:')) then
  robbed[2], robbed[3] = value, call('PTTL', lock)
  call('DEL', lock)
  if not is_foreign then
    redis.pcall('PUBLISH', 'tenure:h:' .. string.sub(value, 1, 16), 'a' .. string.sub(value, 17, 48))
  end
  value = nil
end
value = settle(value)
robbed[1] = now
if value == SHARED then
  local all = call('ZRANGE', shared, '0', '-1', 'WITHSCORES')
  if not all[1] then
    robbed[2], robbed[3] = value, call('PTTL', lock)
  end
  for i = 1, #all, 2 do
    local owner, details = all[i], call('HGET', who, all[i]) or 's:0:0:'
    if (is_all or owner == whom) and string.match(details, '^[^:]*:([^:]*):') ~= '0' then
      together().drop(owner)
      robbed[#robbed + 1], robbed[#robbed + 2], robbed[#robbed + 3] = owner, details, all[i + 1]
      redis.pcall('PUBLISH', 'tenure:h:' .. string.sub(owner, 1, 16), 'a' .. string.sub(owner, 17))
    end
  end
  value = together().cover()
end
hand_on(value, nil)
return robbed
