#!lua
-- Reads a string: read_string(key) -> value (false if missing), err.
--
-- A key of another type counts as missing, so that the next take replaces it. Any other error (such as an
-- ACL that forbids GET) is returned, because an unreadable counter must not count as empty.
local value = redis.pcall('GET', ...)
if value and value.err then
  return false, not string.find(value.err, 'WRONGTYPE', 1, true) and value
end
return value
