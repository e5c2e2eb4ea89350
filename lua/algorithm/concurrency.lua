#!lua
-- Concurrency: so many in flight; each has a holder, and a lease after which it frees itself.
-- Blocks of apply.lua and give_back.lua; not a script alone.
--
-- KEYS[i]  the counter
-- ARGV[1]  now_us, as everywhere
-- of each check:
--   +2  cost: slots, at most one more than there are
--   +3  limit: slots
--   +4  lease_us
--   +5  holder: 16 bytes; empty: nobody (who gives nothing back)
--
-- State    a sorted set. A member is a slot: the holder's 16 bytes and 2 of which of its slots it is;
--          its score is the microsecond in which the lease ends. So slots in flight are a ZCOUNT, and
--          everything is logarithmic in them.
-- Expiry   the last lease's end and at most 2 ms
-- Reply    apply.lua's six numbers; since is the lease's beginning, the holder is not repeated
-- Cost     TIME, ZCOUNT, ZRANGE, two ZSCORE; ZADD, ZREMRANGEBYSCORE, PEXPIRE; refused: no write

-- begin functions: slots within a call: `live` in the stored set, and of each holder that the call
-- touches: 1 slots stored, 2 their end, 3 slots now, 4 their end.
f.member = function(holder, nth)
  return table.concat({ holder, struct.pack('>I2', nth) })
end
f.load = function(key)
  local live = redis.pcall('ZCOUNT', key, string.format('(%d', now), '+inf')
  if type(live) == 'table' then
    if not string.find(live.err, 'WRONGTYPE', 1, true) then return live end
    return { key = key, live = 0, touched = {}, anew = true }
  end
  return { key = key, live = live, touched = {} }
end
f.copy = function(s)
  local t = { key = s.key, live = s.live, anew = s.anew, touched = {} }
  for holder, slots in pairs(s.touched) do t.touched[holder] = slots end
  return t
end
f.touch = function(s, holder)
  local slots = s.touched[holder]
  if slots then return slots end
  local count, ends = 0, 0
  if s.live > 0 then
    ends = tonumber(redis.call('ZSCORE', s.key, f.member(holder, 0))) or 0
    if ends > now then
      count = 1
      while redis.call('ZSCORE', s.key, f.member(holder, count)) do count = count + 1 end
    end
  end
  slots = { count, ends, count, ends }
  s.touched[holder] = slots
  return slots
end
-- The stored slot that ends as the nth of all that have not.
f.stored = function(s, nth)
  local from_end = nth - s.live - 1
  local slot = redis.call('ZRANGE', s.key, from_end, from_end, 'WITHSCORES')
  return tonumber(slot[2]), slot[1]
end
f.newest = function(s)
  local newest, nth = 0, s.live
  while nth > 0 do
    local ends, member = f.stored(s, nth)
    local slots = s.touched[string.sub(member, 1, 16)]
    if not slots or slots[1] == 0 then
      newest = ends
      break
    end
    nth = nth - slots[1]
  end
  for _, slots in pairs(s.touched) do
    if slots[3] > 0 and slots[4] > newest then newest = slots[4] end
  end
  return newest
end
f.held = function(s, but)
  local held = s.live
  for holder, slots in pairs(s.touched) do
    held = held - slots[1] + (holder ~= but and slots[3] or 0)
  end
  return held
end
-- A lease that ends later than any taken now could was given by a clock far ahead: it began now.
-- What no script of ours wrote goes at that occasion.
f.clamped = function(s, lease)
  local t = { key = s.key, live = 0, anew = true, touched = {} }
  for holder, slots in pairs(s.touched) do
    t.touched[holder] = { 0, 0, slots[3], slots[4] }
  end
  local stored = s.live > 0 and redis.call('ZRANGE', s.key, -s.live, -1, 'WITHSCORES') or {}
  for n = 1, #stored, 2 do
    local holder = string.sub(stored[n], 1, 16)
    if #stored[n] == 18 and not s.touched[holder] then
      local slots = t.touched[holder] or { 0, 0, 0, tonumber(stored[n + 1]) }
      slots[3], t.touched[holder] = slots[3] + 1, slots
    end
  end
  for holder, slots in pairs(t.touched) do
    if slots[4] > now + 2 * lease then t.touched[holder] = { 0, 0, slots[3], now + lease } end
  end
  return t
end
-- The end of the lease that ends as the nth of all others'.
f.nth_end = function(s, nth, but)
  local away, added = 0, 0
  for holder, slots in pairs(s.touched) do
    away, added = away + slots[1], added + (holder ~= but and slots[3] or 0)
  end
  if away == 0 and added == 0 then return (f.stored(s, nth)) end
  local function by(time)
    local ended = s.live > 0 and redis.call('ZCOUNT', s.key, string.format('(%d', now), time) or 0
    for holder, slots in pairs(s.touched) do
      if slots[2] <= time then ended = ended - slots[1] end
      if holder ~= but and slots[4] <= time then ended = ended + slots[3] end
    end
    return ended >= nth
  end
  local from, to, ends = math.max(nth - added, 1), math.min(nth + away, s.live) + 1, nil
  local past = to
  while from < to do
    local middle = math.floor((from + to) / 2)
    if by((f.stored(s, middle))) then to = middle else from = middle + 1 end
  end
  if to < past then ends = f.stored(s, to) end
  for holder, slots in pairs(s.touched) do
    if holder ~= but and slots[3] > 0 and (not ends or slots[4] < ends) and by(slots[4]) then
      ends = slots[4]
    end
  end
  return ends or now
end
f.wait = function(s, cost, limit, but)
  if cost > limit then return false, 0 end
  local over = f.held(s, but) + cost - limit
  if over <= 0 then return true, 0 end
  return false, math.max(f.nth_end(s, over, but) - now, 1)
end
f.step = function(s, op, cost, limit, lease, holder)
  limit, lease = limit + 0, lease + 0
  local newest, after = f.newest(s), nil
  local far = newest > now + 2 * lease
  if far then
    s = f.clamped(s, lease)
    after, newest = s, f.newest(s)
  end
  if op == 103 then
    if holder ~= '' and f.touch(s, holder)[3] > 0 then
      after = f.copy(s)
      local slots = s.touched[holder]
      after.touched[holder] = { slots[1], slots[2], 0, 0 }
    end
    return after, true, 0, 0, 0, 0, far
  elseif op == 112 then
    local passes, wait = f.wait(s, cost, limit)
    return after, passes, wait, 0, 0, 0, far
  end
  local slots = f.touch(s, holder)
  local passes, wait = f.wait(s, cost, limit, holder)
  if not passes then return after, false, wait, 0, 0, 0, far end
  local began = math.max(newest - lease, now)
  after = f.copy(s)
  after.touched[holder] = { slots[1], slots[2], cost, began + lease }
  -- A renewal charges nothing: were it given back, a slot held before the call would be freed.
  return after, true, 0, slots[3] > 0 and 0 or cost, began, 0, far
end
f.tell = function(s, limit)
  return math.max(limit - f.held(s), 0), math.max(f.newest(s) - now, 0)
end
f.save = function(key, s)
  if s.anew then redis.call('PEXPIRE', key, -1) end
  for holder, slots in pairs(s.touched) do
    for nth = 0, slots[3] - 1 do
      if nth >= slots[1] or slots[4] ~= slots[2] then
        redis.call('ZADD', key, slots[4], f.member(holder, nth))
      end
    end
    for nth = slots[3], slots[1] - 1 do redis.call('ZREM', key, f.member(holder, nth)) end
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if last then
    local left = last - now + 1999
    redis.call('PEXPIRE', key, (left - left % 1000) / 1000 + keep)
  end
end
-- end functions

-- begin give_back: key, holder -> lowered
local s = f.load(key)
if s.err then return s end
if f.touch(s, holder)[3] > 0 then
  s.touched[holder] = { s.touched[holder][1], s.touched[holder][2], 0, 0 }
  f.save(key, s)
  lowered = lowered + 1
end
-- end give_back
