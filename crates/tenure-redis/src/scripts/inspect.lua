-- Reads the state of a lock; changes nothing. After fence.
-- KEYS  as in lock, and the memo as the last
-- ARGV  1 gate
-- reply {now in ms, fence, value, ms left, {places: owner, details, end, ...}, {shared: owner, details, end, ...},
--        memo, ms left, {places whose class is not the default: owner, score, ...}}
-- What has expired is still in the reply; the reader leaves it out.
local call = redis.call
local time = call('TIME')
local function list(order, ends)
  local rows = {}
  for _, owner in ipairs(call('ZRANGE', order, '0', '-1')) do
    rows[#rows + 1] = owner
    rows[#rows + 1] = call('HGET', KEYS[6], owner) or ''
    rows[#rows + 1] = call('ZSCORE', ends, owner) or '0'
  end
  return rows
end
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then -- as lock.lua
  if type(redis.pcall('ZCARD', KEYS[1])) ~= 'number' or call('PTTL', KEYS[1]) < 0 then error(value.err) end
  value = 'zset'
end
if value then value = string.sub(value, 1, 1024) end -- as place.lua
-- The bounds of the classes: sides.lua.
local classes = call('ZRANGEBYSCORE', KEYS[2], '-inf', '(0', 'WITHSCORES')
for _, text in ipairs(call('ZRANGEBYSCORE', KEYS[2], '1099511627776', '+inf', 'WITHSCORES')) do classes[#classes + 1] = text end
local held = value == 'tenure:shared' and list(KEYS[5], KEYS[5]) or {}
return {
  time[1] * 1000 + math.floor(time[2] / 1000), fence(), value, call('PTTL', KEYS[1]), list(KEYS[2], KEYS[4]), held,
  call('GET', KEYS[#KEYS]), call('PTTL', KEYS[#KEYS]), classes,
}
