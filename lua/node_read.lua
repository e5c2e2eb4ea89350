#!lua
-- Reads the counters of a call to one node of a cluster, by GET or STRLEN:
-- node_read(command, arguments, first) -> keys, values; nil if a key is not on this node. The keys are the
-- arguments from `first` on, in any slots.
--
-- A key of another node, and a missing key of a slot that is moving, is an error at its read. So if all
-- keys can be read, all can be written. One command for several keys would fail if they are in several
-- slots, although all are here.
-- Redis 8.0 does not find a key of a moving slot if the command before it used another slot: the first
-- read of a script then succeeds, and the write later fails. Therefore the first key is read
-- again after the last: then each slot is used right after another one.
local command, arguments, first = ...
local keys, values, last = {}, {}, #arguments
for i = first, last + 1 do
  local key = arguments[i <= last and i or first]
  local value = redis.pcall(command, key)
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then
      return nil
    end
    value = false
  end
  if i <= last then
    keys[i - first + 1], values[i - first + 1] = key, value
  end
end
return keys, values
