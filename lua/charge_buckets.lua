#!lua
-- Charges buckets in arrival form, in any slots of one node, if every one of them has room:
-- charge_buckets(keys, numbers, now, extra_ms) -> reply; nil if one of them has no room or is not charged
-- here: then none is charged. multi_check.lua describes `numbers` and the reply.
--
-- INCRBY reads and charges at once, and formats no number. GET and SET cost Redis half as much again.
--
-- From Redis 7.4 on, only reads can tell whether a write to a moving slot will succeed (node_read.lua), so
-- there a charge might not be undone.
local keys, numbers, now, extra_ms = ...
local count, version = #keys, redis.REDIS_VERSION_NUM
if numbers[3] ~= count or numbers[4] > 0 or not version or version >= 0x070400 or redis.VALKEY_VERSION_NUM then
  return nil
end
local pcall, call, format = redis.pcall, redis.call, string.format
local reply, last_need, need_text = { now, 0, 0, 0, 0, 0, 0, 0 }, nil, nil
for i = 1, count do
  local key, need, capacity = keys[i], numbers[4 + 2 * i], numbers[5 + 2 * i]
  if need ~= last_need then
    last_need, need_text = need, format('%d', need)
  end
  local tat, left = pcall('INCRBY', key, need_text), nil
  local charged = type(tat) == 'number'
  local after = charged and tat - now
  if charged and after < need then
    -- The bucket was full: its key is missing, or from the past.
    after, left = need, 0
    call('SET', key, format('%d', now + need), 'PX', loadfile('ttl.lua')(2 * need + 1000000, extra_ms))
  elseif charged then
    left = pcall('PTTL', key)
    -- A key lives longer than its state matters, so that few charges set its expiry.
    if type(left) == 'number' and left * 1000 < after + 1999 then
      call('PEXPIRE', key, loadfile('ttl.lua')(2 * after + 1000000, extra_ms))
    end
  end
  if not charged or after > capacity or type(left) ~= 'number' then
    for undone = 1, charged and i or i - 1 do
      need = numbers[4 + 2 * undone]
      local ahead = undone == i and after - need or reply[2 + undone]
      if ahead == 0 then
        -- A full bucket is equivalent to a missing counter.
        call('SET', keys[undone], '0', 'PX', '1')
      else
        call('INCRBY', keys[undone], format('%d', -need))
      end
    end
    return nil
  end
  reply[2 + i] = after - need
end
reply[3 + count] = nil
return reply
