-- Whether this server still has the replicas and the history that it had. After replicas. Asked once a second by whoever uses
-- it.
-- KEYS  1 record
-- reply {a replica acknowledged in ms, that by the record, server time in ms, replid}; texts, empty where there is none
local replication = redis.call('INFO', 'replication')
local last, before = acked(replication)
local time = redis.call('TIME')
return {last, before, string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)),
  string.match(replication, 'master_replid:([^\r\n]*)') or ''}
