-- Frees the lock and hands it on. After queue.
-- reply 1 released; 0 does not hold
if not is_mine(call('GET', lock)) then return 0 end
call('DEL', lock)
settle()
hand_on(nil)
return 1
