-- Put before the parts of a script that go on after a write; end comes after them. An error then shows whether something of
-- the lock had been changed; from that change on, `wrote` is true (L9). To remove what has expired, or to count a token
-- that is not granted, is no change.
local wrote
local is_done, answer = pcall(function()
