-- One lock and its other keys. Put before the scripts that read more than the lock itself.
-- KEYS  1 lock  2 queue (zset: owner by class and arrival: sides.lua)  3 the record with its counter, or this lock's own counter
--       4 places (zset: owner by end)  5 shared (zset: holder by end)
--       6 who (hash: owner to "mode:wait or token:since:label"; `least`, `passed`: sides.lua)  7 the record, in a quorum
-- ARGV  1 gate  2 "claim_ttl:place_ttl:retry_max:places_max:drop", in ms
-- Times are ms of the server's clock. A mode is x (exclusive), s (shared), a limit, or several
-- permits of one (sides.lua). A token 0 is a holder that was handed
-- the lock and has not acquired it yet. Shared holders count only while the value of the lock is SHARED.
local call = redis.call
local SHARED = 'tenure:shared'
local lock, queue, places, shared, who = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6]

-- A sorted set that expires is a lock of symfony/lock, and so of a foreign client; any other key that is no text is an
-- error.
local value = redis.pcall('GET', lock)
if type(value) == 'table' then
  if type(redis.pcall('ZCARD', lock)) ~= 'number' or call('PTTL', lock) < 0 then error(value.err) end
  value = 'zset'
end

local function is_owner(value, owner)
  return value and string.sub(value, 1, 48) == owner and string.byte(value, 49) == 58
end
