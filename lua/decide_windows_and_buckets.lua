#!lua
-- Decides checks of fixed windows and buckets, all of different counters, given the counters' values:
-- decide(keys, values, numbers, now, extra_ms) -> reply. Writes every charge. multi_check.lua describes the
-- numbers, the state, and the reply.
--
-- A value is false or nil if its key is missing or of another type.
local keys, values, numbers, now, extra_ms = ...
local checks = #keys
local debts = numbers[5] == 1
local all_or_nothing, windows, arrivals = numbers[1] == 1, numbers[2], numbers[2] + numbers[3]
local refused, quotas = false, false
local reply, other_windows, fixed_window, bucket = { now, 0, 0, 0, 0, 0, 0, 0 }, false, nil, nil
-- For each special check, by its place in `keys`: the index of its entry in `numbers`.
local special = numbers[4] > 0 and {}
for n = #numbers - 8 * numbers[4], special and #numbers - 8 or -1, 8 do
  special[numbers[n + 1]] = n
end

local at, r = 5, 3
local last, current, digits
for i = 1, checks do
  local value, listed, passes = values[i], special and special[i], false
  local op = listed and numbers[listed + 2]
  local changes = op and op ~= 'take' and op ~= 'peek'
  if i <= windows then
    local cost, hits, length = numbers[at + 1], numbers[at + 2], numbers[at + 3]
    if length ~= last then
      last, current = length, (now - now % length) / length
      digits = string.format('%d', current % 900000000)
    end
    local count, number, held = 0, current, value
    if value then
      count = string.sub(value, 1, -11) == digits and tonumber(string.sub(value, -10))
    end
    if changes or not (count and count >= 0 and count < 1e10 and count % 1 == 0) then
      fixed_window = fixed_window or loadfile('algorithm/fixed_window.lua')(now, extra_ms)
      local limit = { hits, length }
      local state = fixed_window.load(keys[i], limit, 0)
      local start, had, _, clamped = fixed_window.read(state, limit, 0)
      local write = clamped and { start = start, count = had }
      if changes then
        local _
        passes, _, _, _, _, write = fixed_window.step(state, op, cost, limit, 0)
      end
      if write then
        fixed_window.save(keys[i], write, limit, 0)
      end
      count, number, held = had, start / length, false
      if clamped then
        reply[2] = reply[2] + 1
      elseif number ~= current then
        other_windows = other_windows or {}
        other_windows[#other_windows + 1], other_windows[#other_windows + 2] = i, start
      end
    end
    -- `hits` is not read again. Its place now holds the window's number, or -1 - number if INCRBY cannot
    -- increase the stored value.
    numbers[at + 2] = held and number or -1 - number
    passes = passes or not changes and count + cost <= hits
    reply[r] = passes and count or -1 - count
    at, r = at + 3, r + 1
  else
    local need, capacity, rate = numbers[at + 1], numbers[at + 2], i > arrivals and numbers[at + 3] or 1
    local ahead, rem = 0, 0
    if value then
      local tat = tonumber(value)
      if not tat then
        local whole, part = string.match(value, '^(%d+):(%d+)$')
        tat, rem = tonumber(whole), tonumber(part) or 0
      end
      if tat and tat >= now then
        ahead = tat - now
      else
        rem = 0
      end
    end
    local cap = listed and numbers[listed + 4] or debts and 2 * capacity or capacity
    if changes or value and (ahead % 1 ~= 0 or rem >= rate or (ahead - 1000000) * rate > cap) then
      bucket = bucket or loadfile('algorithm/bucket.lua')(now, extra_ms)
      local state, clamped, write = { tat = now + ahead, rem = rem }, false, nil
      ahead, rem, clamped = bucket.read(state, rate, cap, op)
      if changes then
        local limit = { numbers[listed + 6], cap, numbers[listed + 7], rate, numbers[listed + 8] }
        local _
        passes, _, _, _, _, write = bucket.step(state, op, numbers[listed + 5], limit, 0)
      elseif clamped then
        write = { tat = now + ahead, rem = rem }
      end
      if write then
        bucket.save(keys[i], write)
      end
      if clamped then
        reply[2] = reply[2] + 1
      end
    end
    -- This comparison is exact: a product above 2^53 is rounded, but never below the capacity.
    passes = passes or not changes and ahead * rate + rem <= capacity - need
    reply[r] = passes and ahead or -1 - ahead
    if i > arrivals then
      reply[r + 1] = rem
      at, r = at + 3, r + 2
    else
      at, r = at + 2, r + 1
    end
  end
  local role = listed and numbers[listed + 3]
  if not role or role == 'required' then
    refused = refused or not passes
  elseif role ~= 'shadow' then
    -- Whether all checks of the quota group pass.
    quotas = quotas or {}
    quotas[role] = quotas[role] ~= false and passes or false
  end
end
for n = 1, other_windows and #other_windows or 0 do
  reply[r], r = other_windows[n], r + 1
end
reply[r] = nil
local quota_passes = not quotas
if quotas then
  for _, passes in pairs(quotas) do
    quota_passes = quota_passes or passes
  end
end
if all_or_nothing and (refused or not quota_passes) then
  return reply
end

-- Buckets of one call often have the same debt, for example if all were full. Formatting it once saves a
-- tenth of the call.
local call, format, last_ahead, tat, px = redis.call, string.format, nil, nil, nil
at, r = 5, 3
for i = 1, checks do
  local key, listed = keys[i], special and special[i]
  local charges = reply[r] >= 0 and not (listed and numbers[listed + 2] ~= 'take')
  if i <= windows then
    if charges then
      local cost, number, length, now_is = numbers[at + 1], numbers[at + 2], numbers[at + 3], nil
      local count = reply[r] + cost
      if number < 0 then
        number = -1 - number
      elseif cost == 1 then
        -- Unlike INCRBY, INCR needs no formatted number.
        now_is = redis.pcall('INCR', key)
      else
        now_is = redis.pcall('INCRBY', key, string.format('%d', cost))
      end
      if now_is ~= number % 900000000 * 10000000000 + count then
        local left = (number + 1) * length - now + 1999
        local state = string.format('%d%010d', number % 900000000, count)
        redis.call('SET', key, state, 'PX', string.format('%d', (left - left % 1000) / 1000 + extra_ms))
      end
    end
    at, r = at + 3, r + 1
  else
    local rate = i > arrivals and numbers[at + 3]
    if charges then
      local ahead, rem, need = reply[r], 0, numbers[at + 1]
      if rate then
        rem = reply[r + 1] + need
        local part = rem % rate
        ahead, rem = ahead + (rem - part) / rate, part
      else
        ahead = ahead + need
      end
      if ahead ~= last_ahead then
        local left = ahead + 1999
        last_ahead, tat = ahead, format('%d', now + ahead)
        px = format('%d', (left - left % 1000) / 1000 + extra_ms)
      end
      call('SET', key, rem > 0 and format('%d:%d', now + ahead, rem) or tat, 'PX', px)
    end
    at, r = at + (rate and 3 or 2), r + (rate and 2 or 1)
  end
end
return reply
