-- Releases many locks in one step, each as release.lua does.
-- KEYS  locks
-- ARGV  their owners
-- reply per lock as release.lua
local answers, freed = {}, {}
for i, lock in ipairs(KEYS) do
  local value = redis.pcall('GET', lock)
  answers[i] = 0
  -- Of two releases of one owner, the first one releases its lock.
  if type(value) == 'string' and string.sub(value, 1, 48) == ARGV[i] and string.byte(value, -1) ~= 43 and not freed[lock] then
    freed[#freed + 1], freed[lock], answers[i] = lock, true, 1
  end
end
if #freed > 0 then redis.call('DEL', unpack(freed)) end
return answers
