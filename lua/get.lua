#!lua
-- Reads a string: get(key) -> value (false: none), err.
--
-- A key of another type counts as absent, so that the next take replaces it. Any other error (a server
-- that forbids GET) is returned, because a counter that cannot be read is not an empty one.
local value = redis.pcall('GET', ...)
if value and value.err then
  return false, not string.find(value.err, 'WRONGTYPE', 1, true) and value
end
return value
