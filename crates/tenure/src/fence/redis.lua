-- Shows a pass to a key and, if it is let in, runs one write on that key.
-- KEYS  1 the key that is protected  2 its mark, a key with the same hash tag (`mark_key`)
-- ARGV  1 the token  2 x raise the mark, s only check it  3.. the write: a command whose first word is the key, and its
--       further words (`SET`, value; `HSET`, field, value; `DEL`); none: only touch
-- reply {1, mark} or {1, mark, what the write answered} let in · {0, mark} refused, and nothing was changed
-- Atomic, but for one thing: a write that the server refuses (a wrong type, full memory) is an error after the mark was
-- raised. A raised mark and the old value harm nobody; the other way round would (L3). A mark of another type, or one that
-- is no number, is an error, and nothing was changed.
-- Numbers are compared as texts: beyond 2^53 Lua's own are not exact, and a zxid can be larger.
local function number(text)
  return text == '0' or string.match(text or '', '^[1-9]%d*$')
end

local function at_least(a, b)
  if #a ~= #b then return #a > #b end
  return a >= b
end

local token, rule = ARGV[1], ARGV[2]
if not number(token) or (rule ~= 'x' and rule ~= 's') then
  return redis.error_reply('FENCE the pass is a decimal number and then x or s')
end
local mark = redis.pcall('GET', KEYS[2]) or '0'
if type(mark) ~= 'string' or not number(mark) then return redis.error_reply('FENCE the mark is not a number; nothing was written') end
if not at_least(token, mark) then return {0, mark} end
if rule == 'x' and token ~= mark then
  redis.call('SET', KEYS[2], token)
  mark = token
end
if not ARGV[3] then return {1, mark} end
local answer = redis.pcall(ARGV[3], KEYS[1], unpack(ARGV, 4))
if type(answer) == 'table' and answer.err then
  return redis.error_reply('FENCE the key was not written, the mark is ' .. mark .. ': ' .. answer.err)
end
return {1, mark, answer}
