#!lua
-- Reads the counters of a call to one node of a cluster, by GET or STRLEN:
-- node_read(command, keys) -> values, elsewhere (places of the keys that are not on this node; nil if none).
--
-- A key of another node, and a missing key of a slot that is moving, is an error at its read. So if all
-- keys can be read, all can be written. One command for several keys would fail if they are in several
-- slots, although all are here.
-- From Redis 7.4 on, a key of a moving slot is not found if the command before it used another slot: the first
-- read of a script then succeeds, and the write later fails. Therefore the first key is read again after the
-- last: then each slot is used right after another one. Earlier servers are spared that read, 5 % of the call.
local command, keys = ...
-- A list of about the right size, because growing an empty one costs Redis 2 % of the call.
local values, pcall = { false, false, false, false, false }, redis.pcall
local count, version, elsewhere = #keys, redis.REDIS_VERSION_NUM, nil
local reads_again = not version or version >= 0x070400 or redis.VALKEY_VERSION_NUM
for i = 1, reads_again and count + 1 or count do
  local value = pcall(command, keys[i] or keys[1])
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then
      elsewhere = elsewhere or {}
      elsewhere[#elsewhere + 1] = keys[i] and i or 1
    end
    value = false
  end
  values[i] = value
end
return values, elsewhere
