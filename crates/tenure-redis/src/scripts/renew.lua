-- Extends many exclusive leases; never shortens, never re-creates (H2.4, hazard 23).
-- KEYS  1 record  2.. locks
-- ARGV  1 settings of this client, or '' where there is no record  2 gate  3 the largest token that this server granted
--       to this client, or 0  4.. per lock: owner, ttl in ms
-- reply per lock: 1 extended; 0 if this owner does not hold it alone (call keep.lua), and then nothing was changed;
--       -1 instead of all if other clients have adopted other settings: a lease of the old ones must end (H4.5)
--       -2 instead of all if the server was put back to an earlier state (call rewound.lua)
-- An owner that was handed the lock and has not acquired it yet has the token 0, and is not extended (H1.1).
if ARGV[1] ~= '' then
  local record = redis.call('HMGET', KEYS[1], 'settings', 'next', ARGV[2])
  local settings = record[2] and record[2] ~= '' and record[2] or record[1]
  if settings and settings ~= ARGV[1] then return -1 end
  local last = tonumber(record[3])
  if last and last < tonumber(ARGV[3]) then return -2 end
end
local answers = {}
for at = 2, #KEYS do
  local lock, owner, ttl = KEYS[at], ARGV[2 * at], tonumber(ARGV[2 * at + 1])
  local value = redis.pcall('GET', lock)
  answers[at - 1] = 0
  if type(value) == 'string' and string.sub(value, 1, 48) == owner and string.sub(value, 50, 51) ~= '0:' then
    if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end
    answers[at - 1] = 1
  end
end
return answers
