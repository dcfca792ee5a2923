-- What all ways of minting have in common. Put before mint.
local LAST = 9007199254740991 -- 2^53 - 1: beyond it Lua counts the same number twice (L2)

-- Returns a token as text, as commands take it. If no tokens are left, or it is no number, the error comes before anything
-- was granted (L2, L9).
local function countable(last)
  if not (last <= LAST) then error('SPENT the counter of fencing tokens is at its end') end
  return string.format('%d', last)
end
