-- Whether this server may grant: the record has the field that is named after the gate (run, history and settings). The
-- field is the counter as well: see mint.one.lua.
-- ARGV  1 gate
local function may_grant()
  return redis.call('HGET', KEYS[3], ARGV[1])
end
