-- Put before the parts of a script that go on after a write, and end after them: an error says whether it came when something of the lock
-- was changed already, from when on `wrote` is true (L9). To remove what has expired, or to count a token that is not granted, changes nothing.
local wrote
local is_done, answer = pcall(function()
