-- Ends the hold or the wait of an owner, and hands on. After begin and handoff; before end.
-- ARGV  3 owner
-- reply 1 has left; 2 has left, and the lock is free now; 3 has left, and the gate is closed; 0 neither held nor waited
-- It deletes before it grants: then a full memory refuses neither (H1.13, hazard 36).
local owner = ARGV[3]
local left = false
if is_owner(value, owner) then
  call('DEL', lock)
  wrote, value, left = true, nil, true
end
local changed
value, changed = settle(value)
if value == SHARED and call('ZSCORE', shared, owner) then
  together().drop(owner)
  value, left = together().cover(), true
elseif not left and call('ZREM', queue, owner) == 1 then
  drop_place(owner)
  left = true
  if call('EXISTS', queue) == 0 then call('HDEL', who, 'passed') end
end
local closed
if changed or left then value, closed = hand_on(value, owner) end
return not left and 0 or closed and 3 or value and 1 or 2
