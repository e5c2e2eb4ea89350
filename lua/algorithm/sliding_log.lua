#!lua
-- Sliding log: so many hits in any interval of one window's length, exactly; every take is
-- remembered until it is a window old. Blocks of apply.lua and give_back.lua; not a script alone.
--
-- KEYS[i]  the counter
-- ARGV[1]  now_us, as everywhere
-- of each check:
--   +2  cost: hits, at most one more than the limit (charged always: than twice the limit)
--   +3  limit: hits per window
--   +4  length_us
--   +5  cap: the most that is remembered; charged always twice the limit, else the limit
--
-- State    a string of 20 bytes per take, oldest first, big-endian: 7 time in microseconds, 5 hits of
--          all takes up to and with this one, 3 its own hits, 5 its number (sums and numbers modulo
--          2^40). So the hits that count are a difference of two sums, found by bisection, and a
--          take is an APPEND: it reads and writes a handful of takes however long the log is. A take
--          that was given back stays with no hits and the time of the one before it. When more takes
--          are over than count, the next one writes the string anew.
-- Expiry   the newest take's end and at most 2 ms
-- Reply    apply.lua's six numbers; since is the take's time, entry its number
-- Cost     TIME, STRLEN and GET (above 200 takes: about 15 GETRANGE of 20 bytes); APPEND and PEXPIRE,
--          or SET; refused: no write

-- begin entries: key -> f.format, f.count (takes in the string), f.raw (one of them). Numbers exact.
f.format, f.size, f.round = '>I7I5I3I5', 20, 1099511627776
f.count = function(key)
  local bytes = redis.pcall('STRLEN', key)
  if type(bytes) == 'table' then
    return string.find(bytes.err, 'WRONGTYPE', 1, true) and 0 or bytes
  end
  return bytes % f.size == 0 and bytes / f.size or 0
end
f.raw = function(key, nth, whole)
  if whole then
    return struct.unpack(f.format, whole, (nth - 1) * f.size + 1)
  end
  return struct.unpack(f.format, redis.call('GETRANGE', key, (nth - 1) * f.size, nth * f.size - 1))
end
-- The first of from..to that holds (to + 1: none); what holds for one holds for all later ones.
f.first = function(from, to, holds)
  to = to + 1
  while from < to do
    local middle = math.floor((from + to) / 2)
    if holds(middle) then to = middle else from = middle + 1 end
  end
  return from
end
-- end entries

-- begin functions: a log within a call: `n` takes of the stored string, of which `first` is the first
-- that counts, and then those in `more`; `before` is the sum before `first`, `total` the last sum.
-- insert sliding_log.entries
f.entry = function(s, nth)
  if nth > s.n then
    local take = s.more[nth - s.n]
    return take[1], take[2], take[3], take[4]
  end
  return f.raw(s.key, nth, s.whole)
end
f.length = function(s)
  return s.n + #s.more
end
f.held = function(s)
  return (s.total - s.before) % f.round
end
f.copy = function(s)
  local t = {}
  for name, value in pairs(s) do t[name] = value end
  t.more = { unpack(s.more) }
  return t
end
f.load = function(key, _, length)
  length = length + 0
  local n = f.count(key)
  if type(n) == 'table' then return n end
  local s = { key = key, n = n, stored = n, first = 1, before = 0, total = 0, next = 0, newest = 0, more = {} }
  if n == 0 then return s end
  s.whole = n <= 200 and redis.call('GET', key)
  local newest, total, _, number = f.entry(s, n)
  s.total, s.next = total, number + 1
  -- A clock that stepped back stands still, so that what is over stays over.
  local still = math.max(newest, now)
  s.first = newest + length > still and f.first(1, n, function(nth)
    return (f.entry(s, nth)) + length > still
  end) or n + 1
  if s.first > n then
    s.before = total
  else
    local _, sum, hits = f.entry(s, s.first)
    s.newest, s.before = newest, (sum - hits) % f.round
  end
  return s
end
-- A take from more than a window ahead is read as taken now.
f.clamped = function(s, horizon)
  local t, parts = f.copy(s), { {}, {}, {} }
  for nth = s.first, f.length(s) do
    local at, _, hits, number = f.entry(s, nth)
    local part = at > horizon and 2 or at <= now and 1 or 3
    table.insert(parts[part], { part == 2 and now or at, 0, hits, number })
  end
  t.n, t.first, t.more, t.before, t.total, t.newest = 0, 1, {}, 0, 0, 0
  for part = 1, 3 do
    for _, take in ipairs(parts[part]) do
      t.total = (t.total + take[3]) % f.round
      take[2], t.newest = t.total, take[1]
      table.insert(t.more, take)
    end
  end
  return t
end
f.wait = function(s, cost, limit, length)
  if cost > limit then return false, 0 end
  if f.held(s) + cost <= limit then return true, 0 end
  local last = f.length(s)
  local nth = f.first(s.first, last, function(nth)
    local _, sum = f.entry(s, nth)
    return (s.total - sum) % f.round + cost <= limit
  end)
  local opens = nth <= last and (f.entry(s, nth)) + length - now or 1
  return false, opens > 1 and opens or 1
end
f.push = function(s, hits)
  local t = f.copy(s)
  local at = s.newest > now and s.newest or now
  -- An empty log is the same as none.
  local number = f.held(s) > 0 and s.next or 0
  t.total, t.newest, t.next = (s.total + hits) % f.round, at, (number + 1) % f.round
  table.insert(t.more, { at, t.total, hits, number })
  return t, at, number
end
-- The newest go first, as if they had not been.
f.drop = function(s, hits)
  local left, t = f.held(s) - hits, f.copy(s)
  local last = 0
  if left > 0 then
    last = f.first(s.first, f.length(s), function(nth)
      local _, sum = f.entry(s, nth)
      return (sum - s.before) % f.round >= left
    end)
  else
    left = 0
  end
  t.n, t.more, t.newest, t.total = 0, {}, 0, (s.before + left) % f.round
  if left > 0 then
    local at, sum, had, number = f.entry(s, last)
    t.n = last - 1 < s.n and last - 1 or s.n
    for nth = s.n + 1, last - 1 do table.insert(t.more, { f.entry(s, nth) }) end
    table.insert(t.more, { at, t.total, had - (sum - t.total) % f.round, number })
    t.newest = at
  end
  return t
end
f.step = function(s, op, cost, limit, length, cap)
  limit, length = limit + 0, length + 0
  local far, after = s.newest > now + length, nil
  if far then
    s = f.clamped(s, now + length)
    after = s
  end
  if op == 103 then
    if cost > 0 and f.held(s) > 0 then after = f.drop(s, cost) end
    return after, true, 0, 0, 0, 0, far
  end
  local passes, wait = f.wait(s, cost, limit, length)
  local room = op ~= 112 and passes and cost or 0
  if op == 100 and not passes then
    room = math.max(math.min(cost, cap - f.held(s)), 0)
  end
  if room == 0 then return after, passes, wait, 0, 0, 0, far end
  local at, entry
  after, at, entry = f.push(s, room)
  if not passes then
    local _, opens = f.wait(after, cost, limit, length)
    wait = opens
  end
  return after, passes, wait, room, at, entry, far
end
f.tell = function(s, limit, length)
  local left, reset = limit - f.held(s), s.newest > 0 and s.newest + length - now or 0
  return left > 0 and left or 0, reset > 0 and reset or 0
end
f.save = function(key, s, _, length)
  local text, last = {}, -1
  for n, take in ipairs(s.more) do
    text[n], last = struct.pack(f.format, unpack(take)), take[4]
  end
  local left = (s.newest > 0 and s.newest + length > now and s.newest + length - now or 0) + 1999
  local ms = (left - left % 1000) / 1000 + keep
  local over, counts = s.first - 1, f.length(s) - s.first + 1
  if s.n == s.stored and s.n > 0 and over <= counts then
    redis.call('APPEND', key, table.concat(text))
    redis.call('PEXPIRE', key, ms)
    return
  end
  if last + 1 ~= s.next then
    text[#text + 1] = struct.pack(f.format, s.newest, s.total, 0, (s.next - 1) % f.round)
  end
  if s.n >= s.first then
    table.insert(text, 1, redis.call('GETRANGE', key, over * f.size, s.n * f.size - 1))
  end
  redis.call('SET', key, table.concat(text), 'PX', ms)
end
-- end functions

-- begin give_back: key, at (when it was taken), number, length -> lowered. The takes after it are
-- written anew: in practice a few. What is over goes: were this the newest, a clock that stepped
-- back would bring older ones to life again.
local n = f.count(key)
if type(n) == 'table' then return n end
local still = n > 0 and math.max((f.raw(key, n)), now)
local first = f.first(1, n, function(nth)
  return (f.raw(key, nth)) + length > still
end)
local nth = f.first(first, n, function(nth)
  return (f.raw(key, nth)) >= at
end)
local text, back, newest = {}, 0, 0
while nth <= n do
  local time, _, hits, found = f.raw(key, nth)
  if time ~= at then break end
  if found == number and hits > 0 then
    if nth > first then newest = f.raw(key, nth - 1) end
    for other = nth, n do
      local time, sum, hits, number = f.raw(key, other)
      if other == nth then
        back, time, hits = hits, newest, 0
      end
      newest = time
      text[#text + 1] = struct.pack(f.format, time, (sum - back) % f.round, hits, number)
    end
    break
  end
  nth = nth + 1
end
if back > 0 then
  if nth > first then
    table.insert(text, 1, redis.call('GETRANGE', key, (first - 1) * f.size, (nth - 1) * f.size - 1))
  end
  local left = (newest + length > now and newest + length - now or 0) + 1999
  redis.call('SET', key, table.concat(text), 'PX', string.format('%d', (left - left % 1000) / 1000 + keep))
  lowered = lowered + 1
end
-- end give_back
