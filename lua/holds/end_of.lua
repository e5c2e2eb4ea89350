#!lua
-- Returns the microsecond in which the hold of an id ends: end_of(now, state, id); 0 if it has ended.
local now, state, id = ...
local change = state.changes and state.changes[id]
local ends = change and change[2]
if not ends or ends == true then
  ends = tonumber(redis.call('ZMSCORE', state.loaded.ends, id)[1]) or 0
end
return ends > now and ends or 0
