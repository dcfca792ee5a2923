-- What there is to judge whether this server may grant. After facts. Changes nothing.
-- KEYS  1 record
-- ARGV  1 gate of the settings that are asked for
-- reply {facts, uptime in s, version, record, server time in us, 1 if this gate is open}
local said, uptime, version = facts()
local time = redis.call('TIME')
local run, replid = string.match(said, '^([^|]*)|[^|]*|([^|]*)|')
local gate = string.sub(run, 1, 16) .. '.' .. string.sub(replid, 1, 16) .. '.' .. ARGV[1]
return {
  said, uptime, version, record(), string.format('%.0f', time[1] * 1000000 + time[2]),
  redis.call('HEXISTS', KEYS[1], gate),
}
