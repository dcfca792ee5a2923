-- Stores a memo with a lock. The memo outlives the lease of its writer, and expires.
-- KEYS  1 lock  2 shared  3 who  4 memo ("owner:token:kept in ms:text")
-- ARGV  1 owner  2 its token  3 for how long it is kept, in ms  4 text
-- reply 1 it is stored; 0 the owner does not hold the lock, or the writer of the memo before has a larger token
-- An owner that was handed the lock and has not acquired it yet has the token 0, and holds nothing yet. The SET is the only
-- write.
local owner, token, value = ARGV[1], tonumber(ARGV[2]), redis.call('GET', KEYS[1])
local mine = value and string.sub(value, 1, 49) == owner .. ':' and string.match(value, '^%x+:(%d+):')
if value == 'tenure:shared' then
  local ends, time = redis.call('ZSCORE', KEYS[2], owner), redis.call('TIME')
  if ends and tonumber(ends) > time[1] * 1000 + math.floor(time[2] / 1000) then
    mine = string.match(redis.call('HGET', KEYS[3], owner) or '', '^[^:]*:(%d+):')
  end
end
if not mine or mine == '0' then return 0 end
local there = string.match(redis.call('GET', KEYS[4]) or '', '^%x+:(%d+):')
if there and tonumber(there) > token then return 0 end
redis.call('SET', KEYS[4], owner .. ':' .. ARGV[2] .. ':' .. ARGV[3] .. ':' .. ARGV[4], 'PX', ARGV[3])
return 1
