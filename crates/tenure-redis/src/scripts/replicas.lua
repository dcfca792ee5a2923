-- When a connected replica acknowledged last, and when one did by the record: in ms of the server's clock, as text; empty
-- where none ever did. Put before the scripts that check the replicas. It updates the record, if there is one.
-- A lag counts whole seconds; a replica that is still loading acknowledges nothing.
local function acked(replication)
  local time, least = redis.call('TIME'), nil
  for replica in string.gmatch(replication, 'slave%d+:([^\r\n]*)') do
    local lag = tonumber(string.match(replica, 'lag=(%d+)'))
    local state = string.match(replica, 'state=([%a_]*)')
    if lag and (state == 'online' or state == 'stable_sync') then least = math.min(least or lag, lag) end
  end
  local before = redis.call('HGET', KEYS[1], 'acked') or ''
  if not least then return '', before end
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local last = now - least * 1000
  -- A second more or less is not worth a write. A write that fails is tried again next time.
  if math.abs(last - (tonumber(before) or 0)) > 1000 and redis.call('HEXISTS', KEYS[1], 'run') == 1 then
    redis.pcall('HSET', KEYS[1], 'acked', string.format('%.0f', last))
  end
  return string.format('%.0f', last), before
end
