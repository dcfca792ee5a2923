-- Whether this node may grant: the field of its record that is named after the gate (run, history and settings) is there. It holds
-- the floor in us that judge.lua put there, below which no counter begins that was lost (H3.1); mints do not change it.
-- KEYS  7 record
-- ARGV  1 gate
local floor
local function may_grant()
  if floor == nil then floor = redis.call('HGET', KEYS[7], ARGV[1]) end
  return floor and true
end
