-- The facts of this server, as one text by which two readings are compared. Put before the scripts that judge it.
local function facts()
  local server, replication = redis.call('INFO', 'server'), redis.call('INFO', 'replication')
  local stats, commands = redis.call('INFO', 'stats'), redis.call('INFO', 'commandstats')
  local flushes = 0
  for _, name in ipairs({'flushall', 'flushdb', 'swapdb'}) do
    flushes = flushes + tonumber(string.match(commands, 'cmdstat_' .. name .. ':calls=(%d+)') or 0)
  end
  local field = function(text, name) return string.match(text, name .. ':([^\r\n]*)') or '' end
  return table.concat({
    field(server, 'run_id'), field(replication, 'role'), field(replication, 'master_replid'),
    field(replication, 'second_repl_offset'), field(stats, 'evicted_keys'), string.format('%d', flushes),
  }, '|'), field(server, 'uptime_in_seconds'), replication
end
local function record()
  local texts = {}
  for _, name in ipairs({'run', 'replid', 'ready', 'settings', 'next', 'wait', 'renews'}) do
    texts[#texts + 1] = redis.call('HGET', KEYS[1], name) or ''
  end
  return table.concat(texts, '|')
end
