#!lua
-- Reads a call's counters on one node of a cluster, with GET or STRLEN:
-- node_read(command, keys) -> values, elsewhere (places of the keys that are not on this node; nil if none).
--
-- A read fails if the key is on another node, or if the key is missing and its slot is moving. So if all reads
-- succeed, all writes will, too. One command for several keys would fail if they are in several slots, even if
-- this node holds them all.
-- From Redis 7.4 on, a read notices that a slot is moving only if the command before it used another slot. So the
-- first read of a script would succeed, and the write would fail later. Therefore the first key is read again
-- after the last one. Earlier servers are spared that read, 5 % of the call.
local command, keys = ...
-- Starts at about its final size, because growing an empty list costs Redis 2 % of the call.
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
