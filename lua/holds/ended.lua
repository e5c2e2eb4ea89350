#!lua
-- Removes a budget's holds that have ended: ended(now, amounts, ends, sum, kept) -> sum, ids, next_end, kept.
--
-- next_end is the end of the first hold that is not settled, or of the 32nd hold. So settled ones, which hold no
-- hits any more, are removed together.
local now, amounts, ends, sum, kept = ...
-- Maximum number of values in one command: Lua's stack has room for 8,000.
local VALUES_MAX = 4000
local gone = nil
repeat
  gone = redis.call('ZRANGE', ends, '-inf', string.format('%d', now), 'BYSCORE', 'LIMIT', 0, VALUES_MAX)
  if #gone > 0 then
    local held = redis.call('HMGET', amounts, unpack(gone))
    for n = 1, #gone do
      sum = sum - (tonumber(held[n]) or 0)
    end
    redis.call('HDEL', amounts, unpack(gone))
    redis.call('ZREM', ends, unpack(gone))
  end
until #gone < VALUES_MAX
local ids = redis.call('HLEN', amounts) - 1
-- If Redis has evicted ends, the holds without one would never end, so all are removed.
if ids <= 0 or redis.call('ZCOUNT', ends, '-inf', '+inf') < ids then
  redis.call('PEXPIRE', amounts, -1)
  redis.call('PEXPIRE', ends, -1)
  return 0, 0, 0, 0
end
local first, names = redis.call('ZRANGE', ends, 0, 31, 'WITHSCORES'), {}
for n = 1, #first / 2 do
  names[n] = first[2 * n - 1]
end
local held, next_end = redis.call('HMGET', amounts, unpack(names)), 0
for n = 1, #names do
  next_end = first[2 * n] + 0
  if tonumber(held[n]) ~= 0 then
    break
  end
end
redis.call('HSET', amounts, '+', cmsgpack.pack(sum, ids, next_end, kept))
return sum, ids, next_end, kept
