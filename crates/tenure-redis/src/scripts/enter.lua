-- Grants the lock to one owner, exclusively. After mint and lock, and before all else: an owner that was handed the lock
-- needs no more than this, and functions that are not defined cost nothing.
-- ARGV  those of claim
-- The token is minted before anything is changed: without a token, nothing was (L9). The lock's SET is the last write
-- (H1.12).
local owner, ttl, mode, wait = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

-- An owner that already holds the lock is granted it again: with the full ttl and a new token (H1.2, H1.3, H1.5).
-- `leave` removes its place from the queue.
local function enter_alone(value, leave)
  local token, count = mint(tonumber(ARGV[7]))
  if not token then return {count} end
  if leave then leave(owner) end
  local flag = value and string.byte(value, -1) == 43 and '+' or ''
  if not value and call('EXISTS', queue) == 1 then flag = '+' end
  -- An owner that was handed the lock has at most a claim ttl left.
  local handed = not value or string.sub(value, 49, 51) == ':0:' and ttl >= tonumber(string.match(ARGV[2], '%d+'))
  local left = handed and 0 or call('PTTL', lock)
  local text = owner .. ':' .. string.format('%d', token + count - 1) .. ':' .. ARGV[8] .. ':' .. ARGV[9] .. flag
  call('SET', lock, text, 'PX', string.format('%d', math.max(ttl, left)))
  return {1, token, count}
end

if mode == 'x' and is_owner(value, owner) then return enter_alone(value) end
