-- Lets one owner in, alone. After mint and lock, and before all else: who was handed the lock needs no more than this, and
-- functions that are not made cost nothing.
-- ARGV  those of claim
-- The token is minted before anything is changed: where there is none, nothing was (L9). The lock's SET is the last write (H1.12).
local owner, ttl, mode, wait = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

-- An owner that holds already is granted again: extended to the full ttl and with a new token (H1.2, H1.3, H1.5).
-- `leave` takes its place out of the queue.
local function enter_alone(value, leave)
  local token, count = mint(tonumber(ARGV[7]))
  if not token then return {count} end
  if leave then leave(owner) end
  local flag = value and string.byte(value, -1) == 43 and '+' or ''
  if not value and call('EXISTS', queue) == 1 then flag = '+' end
  -- Who was handed the lock has no more than a claim ttl left.
  local handed = not value or string.sub(value, 49, 51) == ':0:' and ttl >= tonumber(string.match(ARGV[2], '%d+'))
  local left = handed and 0 or call('PTTL', lock)
  local text = owner .. ':' .. string.format('%d', token + count - 1) .. ':' .. ARGV[8] .. ':' .. ARGV[9] .. flag
  call('SET', lock, text, 'PX', string.format('%d', math.max(ttl, left)))
  return {1, token, count}
end

if mode == 'x' and is_owner(value, owner) then return enter_alone(value) end
