-- Whether this server still has the replicas that it had. After replicas. Asked once a second by whoever uses it.
-- KEYS  1 record
-- reply {a replica acknowledged in ms, that by the record, server time in ms}; texts, empty where there is none
local last, before = acked(redis.call('INFO', 'replication'))
local time = redis.call('TIME')
return {last, before, string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))}
