#!lua
-- Unpacks numbers(packed) -> array of the numbers in an argument of multi_check.lua or decide.lua.
--
-- Many numbers come as one array, because they would not fit on Lua's stack.
local numbers = { cmsgpack.unpack(...) }
return numbers[2] and numbers or numbers[1]
