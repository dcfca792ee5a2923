-- Reads what is needed to judge whether this server may grant. After facts and replicas.
-- KEYS  1 record
-- reply {facts, uptime in s, record, when a replica acknowledged last in ms, the same by the record, server time in µs,
--       1 if the gate of its settings, or of those to be adopted, is open}
local said, uptime, replication = facts()
local time = redis.call('TIME')
local run, replid = string.match(said, '^([^|]*)|[^|]*|([^|]*)|')
local asked = redis.call('HGET', KEYS[1], 'next')
if not asked or asked == '' then asked = redis.call('HGET', KEYS[1], 'settings') or '' end
local gate = string.sub(run, 1, 16) .. '.' .. string.sub(replid, 1, 16) .. '.' .. asked
local last, before = acked(replication)
return {
  said, uptime, record(), last, before, string.format('%.0f', time[1] * 1000000 + time[2]),
  redis.call('HEXISTS', KEYS[1], gate),
}
