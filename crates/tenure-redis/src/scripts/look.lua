-- Whether this server still has the replicas and the history that it had. After replicas. Each client calls it about once a
-- second while it uses the server.
-- KEYS  1 record
-- reply {when a replica acknowledged last in ms, the same by the record, server time in ms, replid}; texts,
--       empty where there is none
local replication = redis.call('INFO', 'replication')
local last, before = acked(replication)
local time = redis.call('TIME')
return {last, before, string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)),
  string.match(replication, 'master_replid:([^\r\n]*)') or ''}
