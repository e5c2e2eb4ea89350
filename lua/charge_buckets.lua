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
local call, charged, reply = redis.call, 0, { now, 0, 0, 0, 0, 0, 0, 0 }

-- Returns whether all have room. A key that is not here or no bucket is an error.
local function charge(keys, numbers, now, call, reply)
  local at, last_need, need_text = 6, nil, nil
  for i = 1, #keys do
    local key, need = keys[i], numbers[at]
    if need ~= last_need then
      last_need, need_text = need, string.format('%d', need)
    end
    local after = call('INCRBY', key, need_text) - now
    -- Its key is missing, or from the past.
    local was_full = after < need
    if was_full then
      after = need
      local tat = string.format('%d', now + need)
      call('SET', key, tat, 'PX', loadfile('ttl.lua')(2 * need + 1000000, extra_ms))
    end
    charged, reply[2 + i] = i, after - need
    if after > numbers[at + 1] then
      return false
    elseif not was_full and call('PTTL', key) * 1000 < after + 1999 then
      -- Twice as long as its state matters, so that few charges set an expiry.
      call('PEXPIRE', key, loadfile('ttl.lua')(2 * after + 1000000, extra_ms))
    end
    at = at + 2
  end
  return true
end

local is_here, has_room = pcall(charge, keys, numbers, now, call, reply)
if is_here and has_room then
  reply[3 + count] = nil
  return reply
end
for i = 1, charged do
  if reply[2 + i] == 0 then
    -- A full bucket is equivalent to a missing counter.
    call('SET', keys[i], '0', 'PX', '1')
  else
    call('INCRBY', keys[i], string.format('%d', -numbers[4 + 2 * i]))
  end
end
return nil
