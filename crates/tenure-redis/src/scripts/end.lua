end)
if is_done then return answer end
if not wrote then error(answer) end
return redis.error_reply('MIDWAY ' .. (type(answer) == 'table' and answer.err or answer))
