-- One step of a walk over all keys of a server, to list locks. Changes nothing.
-- ARGV  1 cursor  2 how many keys to read  3 what the keys of the wanted locks begin with
-- reply {next cursor, {keys of locks that Tenure holds, and of queues}}
-- The server may have any amount of other data: it does not leave the server.
local step = redis.call('SCAN', ARGV[1], 'COUNT', ARGV[2])
local begin, found = ARGV[3], {}
for _, key in ipairs(step[2]) do
  local is_wanted = false
  if string.sub(key, 1, 7) == 'tenure:' then
    is_wanted = string.find(key, ':queue:', 8, true)
  elseif string.sub(key, 1, #begin) == begin then
    local head = redis.pcall('GETRANGE', key, '0', '63')
    if type(head) == 'table' and string.find(head.err, 'command', 1, true) then error(head.err) end -- a right that is missing
    is_wanted = type(head) == 'string' and (string.match(head, '^%x+():') == 49 or string.sub(head, 1, 13) == 'tenure:shared')
  end
  if is_wanted then found[#found + 1] = key end
end
return {step[1], found}
