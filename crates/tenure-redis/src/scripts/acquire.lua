-- Takes a lock that nobody holds and nobody waits for, in exclusive mode. The path that is counted.
-- KEYS  1 lock  2 queue  3 one
-- ARGV  1 gate  2 owner  3 ":since:label"  4 ttl in ms
-- reply token; 0 if it is not as plain as that (ask claim.lua); -1 if the gate is closed
-- The lock's SET is the last write (H1.12). The counter is the gate: see mint.one.lua. A token may be minted in vain.
local call = redis.call
local token = call('HINCRBY', KEYS[3], ARGV[1], '1')
if token < 1000000 then
  call('HDEL', KEYS[3], ARGV[1])
  return -1
end
if call('EXISTS', KEYS[2]) == 1 then return 0 end
if call('SET', KEYS[1], ARGV[2] .. ':' .. string.format('%d', token) .. ARGV[3], 'PX', ARGV[4], 'NX') then return token end
return 0
