-- Extends many exclusive leases; never shortens, never re-creates (H2.4, hazard 23).
-- KEYS  1.. locks
-- ARGV  per lock: owner, ttl in ms
-- reply per lock: 1 extended; 0 if it is not as plain as that (ask keep.lua), and then nothing was changed
-- Who was handed the lock and has not entered has the token 0, and is not extended (H1.1).
local answers = {}
for at, lock in ipairs(KEYS) do
  local owner, ttl = ARGV[2 * at - 1], tonumber(ARGV[2 * at])
  local value = redis.pcall('GET', lock)
  answers[at] = 0
  if type(value) == 'string' and string.sub(value, 1, 48) == owner and string.sub(value, 50, 51) ~= '0:' then
    if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end
    answers[at] = 1
  end
end
return answers
