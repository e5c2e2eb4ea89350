#!lua
-- Writes the changes of a call to a budget's holds: save(now, extra_ms, state).
local now, extra_ms, state = ...
local loaded, fields, members, gone, last = state.loaded, {}, {}, nil, 0
for id, change in pairs(state.changes) do
  local amount, ends = change[1], change[2]
  if not amount then
    gone = gone or {}
    gone[#gone + 1] = id
  else
    fields[#fields + 1], fields[#fields + 2] = id, amount
    if ends ~= true then
      members[#members + 1], members[#members + 2] = ends, id
      last = ends > last and ends or last
    end
  end
end
if loaded.replaces or state.ids <= 0 then
  redis.call('PEXPIRE', loaded.amounts, -1)
  redis.call('PEXPIRE', loaded.ends, -1)
  if state.ids <= 0 then
    return
  end
end
if gone then
  redis.call('HDEL', loaded.amounts, unpack(gone))
end
local expires = last > state.kept
if expires then
  state.kept = 2 * last - now
end
local head = cmsgpack.pack(state.sum, state.ids, state.next_end, state.kept)
redis.call('HSET', loaded.amounts, '+', head, unpack(fields))
if members[1] then
  redis.call('ZADD', loaded.ends, unpack(members))
end
if expires then
  local ttl = loadfile('ttl.lua')(state.kept - now, extra_ms)
  redis.call('PEXPIRE', loaded.amounts, ttl)
  redis.call('PEXPIRE', loaded.ends, ttl)
end
