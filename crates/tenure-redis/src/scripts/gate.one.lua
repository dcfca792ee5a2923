-- Whether this server may grant: the field of the record that is named after the gate (run, history, layout, max_ttl) is there. It
-- is the counter, too: see mint.one.lua.
-- ARGV  1 gate
local function may_grant()
  return redis.call('HGET', KEYS[3], ARGV[1])
end
