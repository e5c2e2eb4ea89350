#!lua
-- Concurrency: at most `slots` slots in use at once. Each has a holder, and a lease after which it becomes
-- free.
-- algorithms.lua describes the functions.
--
-- limit      +1  slots
--            +2  lease_us
--            +3  holder: 16 bytes; if nil, a take uses 16 zero bytes, and a refund does nothing
-- State      a sorted set with a member per slot: 16 bytes for the holder and 2 bytes for the number of
--            the holder's slot. The score is the microsecond in which the lease ends. So the slots in
--            use are a ZCOUNT, and every operation is logarithmic in their number.
--            Within a call: `live`, the number of unexpired slots in the stored set, and for each holder
--            that the call changes its stored and its new slots.
-- Expiry     when the last lease ends
--
-- Numbers are doubles; all that matter here are below 2^53, and therefore exact. Never tostring a timestamp.
local now, extra_ms = ...

local NOBODY = string.rep('\0', 16)

local function member(holder, nth)
  return table.concat({ holder, struct.pack('>I2', nth) })
end

local function ended(key, from, to)
  return redis.call('ZCOUNT', key, string.format('(%d', from), to)
end

local function load(key)
  local live = redis.pcall('ZCOUNT', key, string.format('(%d', now), '+inf')
  if type(live) == 'table' then
    if not string.find(live.err, 'WRONGTYPE', 1, true) then
      return nil, live
    end
    return { key = key, live = 0, touched = {}, replaces = true }
  end
  return { key = key, live = live, touched = {} }
end

-- Returns the slots of a holder: number and end of lease, both as stored and as changed by this call.
local function slots_of(state, holder)
  local slots = state.touched[holder]
  if slots then
    return slots
  end
  local count, ends = 0, 0
  if state.live > 0 then
    ends = tonumber(redis.call('ZSCORE', state.key, member(holder, 0))) or 0
    if ends > now then
      count = 1
      while redis.call('ZSCORE', state.key, member(holder, count)) do
        count = count + 1
      end
    end
  end
  slots = { stored = count, stored_ends = ends, count = count, ends = ends }
  state.touched[holder] = slots
  return slots
end

local function with_slots(state, holder, count, ends)
  local slots = slots_of(state, holder)
  local after = { key = state.key, live = state.live, replaces = state.replaces, touched = {} }
  for other, same in pairs(state.touched) do
    after.touched[other] = same
  end
  after.touched[holder] =
    { stored = slots.stored, stored_ends = slots.stored_ends, count = count, ends = ends }
  return after
end

-- Returns the stored slot whose lease is the nth unexpired one to end.
local function nth_stored(state, nth)
  local from_end = nth - state.live - 1
  local slot = redis.call('ZRANGE', state.key, from_end, from_end, 'WITHSCORES')
  return tonumber(slot[2]), slot[1]
end

-- Returns the end of the last lease; 0 if no slot is in use.
local function newest_end(state)
  local newest, nth = 0, state.live
  while nth > 0 do
    local ends, stored = nth_stored(state, nth)
    local slots = state.touched[string.sub(stored, 1, 16)]
    if not slots or slots.stored == 0 then
      newest = ends
      break
    end
    nth = nth - slots.stored
  end
  for _, slots in pairs(state.touched) do
    if slots.count > 0 and slots.ends > newest then
      newest = slots.ends
    end
  end
  return newest
end

-- Returns the number of slots in use by all holders except one.
local function in_use(state, except)
  local used = state.live
  for holder, slots in pairs(state.touched) do
    used = used - slots.stored + (holder ~= except and slots.count or 0)
  end
  return used
end

-- Returns the state with leases from a clock far ahead restarted now. Drops members that none of our
-- scripts wrote.
local function clamp(state, lease)
  local after = { key = state.key, live = 0, replaces = true, touched = {} }
  for holder, slots in pairs(state.touched) do
    after.touched[holder] = { stored = 0, stored_ends = 0, count = slots.count, ends = slots.ends }
  end
  local stored = state.live > 0 and redis.call('ZRANGE', state.key, -state.live, -1, 'WITHSCORES') or {}
  for n = 1, #stored, 2 do
    local holder = string.sub(stored[n], 1, 16)
    if #stored[n] == 18 and not state.touched[holder] then
      local slots = after.touched[holder]
        or { stored = 0, stored_ends = 0, count = 0, ends = tonumber(stored[n + 1]) }
      slots.count, after.touched[holder] = slots.count + 1, slots
    end
  end
  for _, slots in pairs(after.touched) do
    if slots.ends > now + 2 * lease then
      slots.ends = now + lease
    end
  end
  return after
end

-- Returns the end of the nth lease to end, not counting one holder's.
local function nth_end(state, nth, except)
  local gone, added = 0, 0
  for holder, slots in pairs(state.touched) do
    gone, added = gone + slots.stored, added + (holder ~= except and slots.count or 0)
  end
  if gone == 0 and added == 0 then
    return (nth_stored(state, nth))
  end
  local function reached(time)
    local count = state.live > 0 and ended(state.key, now, time) or 0
    for holder, slots in pairs(state.touched) do
      if slots.stored_ends <= time then
        count = count - slots.stored
      end
      if holder ~= except and slots.ends <= time then
        count = count + slots.count
      end
    end
    return count >= nth
  end
  local from, to = math.max(nth - added, 1), math.min(nth + gone, state.live) + 1
  local past, ends = to, nil
  while from < to do
    local middle = math.floor((from + to) / 2)
    if reached((nth_stored(state, middle))) then to = middle else from = middle + 1 end
  end
  if to < past then
    ends = nth_stored(state, to)
  end
  for holder, slots in pairs(state.touched) do
    if holder ~= except and slots.count > 0 and (not ends or slots.ends < ends) and reached(slots.ends) then
      ends = slots.ends
    end
  end
  return ends or now
end

-- Returns the microseconds until `cost` slots are free, not counting one holder's: 0 if they are free
-- now, nil if they never are.
local function until_free(state, cost, slots, except)
  if cost > slots then
    return nil
  end
  local over = in_use(state, except) + cost - slots
  if over <= 0 then
    return 0
  end
  return math.max(nth_end(state, over, except) - now, 1)
end

local function step(state, op, cost, limit, at)
  local slots, lease, holder = limit[at + 1], limit[at + 2], limit[at + 3]
  local newest, write = newest_end(state), nil
  local clamped = newest > now + 2 * lease
  if clamped then
    state = clamp(state, lease)
    write, newest = state, newest_end(state)
  end
  if op == 'refund' then
    if holder and slots_of(state, holder).count > 0 then
      write = with_slots(state, holder, 0, 0)
    end
    return true, 0, 0, 0, 0, write, clamped
  end
  holder = op ~= 'peek' and (holder or NOBODY) or nil
  local held = holder and slots_of(state, holder)
  local wait = until_free(state, cost, slots, holder)
  if wait ~= 0 or not holder then
    return wait == 0, wait or 0, 0, 0, 0, write, clamped
  end
  local since = math.max(newest - lease, now)
  write = with_slots(state, holder, cost, since + lease)
  if held.count > 0 then
    -- A renewal charges nothing. Its receipt restores the former lease (since) and hits (entry).
    return true, 0, 0, held.ends, held.count, write, clamped
  end
  return true, 0, cost, since, 0, write, clamped
end

local function report(state, limit, at)
  return math.max(limit[at + 1] - in_use(state), 0), math.max(newest_end(state) - now, 0)
end

local function save(key, state)
  if state.replaces then
    redis.call('PEXPIRE', key, -1)
  end
  for holder, slots in pairs(state.touched) do
    for nth = 0, slots.count - 1 do
      if nth >= slots.stored or slots.ends ~= slots.stored_ends then
        redis.call('ZADD', key, slots.ends, member(holder, nth))
      end
    end
    for nth = slots.count, slots.stored - 1 do
      redis.call('ZREM', key, member(holder, nth))
    end
  end
  -- A cluster answers these with an error if the last member is gone and the slot is moving.
  redis.pcall('ZREMRANGEBYSCORE', key, '-inf', now)
  local last = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIRE', key, loadfile('ttl.lua')(last - now, extra_ms))
  end
end

-- Frees the receipt's slots, if they are still in use. A receipt with a window is of a renewal: restores
-- the hits and the end of the lease before it, unless the lease was renewed again.
local function refund(key, limit, at, hits, taken_at, former_end, holder)
  local state, err = load(key)
  local slots = state and slots_of(state, holder)
  if not slots or slots.count == 0 or former_end > 0 and slots.ends ~= taken_at + limit[at + 2] then
    return false, err
  end
  local restores = former_end > now
  save(key, with_slots(state, holder, restores and hits or 0, restores and former_end or 0))
  return true
end

return { load = load, step = step, report = report, save = save, refund = refund }
