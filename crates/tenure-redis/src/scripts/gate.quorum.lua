-- Whether this node may grant: its record has the field that is named after the gate (run, history and settings). The value
-- is the floor in µs, written by judge.lua: a counter that was lost begins no lower (H3.1). Mints do not change it.
-- KEYS  7 record
-- ARGV  1 gate
local floor
local function may_grant()
  if floor == nil then floor = redis.call('HGET', KEYS[7], ARGV[1]) end
  return floor and true
end
