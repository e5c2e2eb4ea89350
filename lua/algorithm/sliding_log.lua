#!lua
-- Sliding log: at most `hits` hits in any interval of one window's length. Each take is stored until it
-- is one window old. algorithms.lua describes the functions.
--
-- limit      +1  hits
--            +2  cap: maximum number of hits stored
--            +3  length_us
-- State      a string of 20 bytes per take, oldest first, big-endian: 7 time in microseconds, 5 hits of
--            all takes up to and including this one, 3 its own hits, 5 its number (sums and numbers
--            modulo 2^40). So the counted hits are the difference of two sums, found by bisection, and
--            a take is an APPEND, which reads and writes a handful of takes however long the log is.
--            If a caller's refund removes the last take, a take of 0 hits, with the time of the take
--            before it, preserves its number. Once expired takes outnumber the others, the next take
--            rewrites the string.
--            Within a call, the takes are the first `kept` ones of the stored string, then those in `added`.
--            `first` is the index of the first unexpired take, `before` the sum before it, `total` the last
--            sum, `newest` the newest time, `next` the next number.
-- Expiry     when the newest take expires
--
-- Numbers are doubles. They are exact here, because all are below 2^53. Never tostring a timestamp: it rounds.
local now, extra_ms = ...

local FORMAT, SIZE, ROUND = '>I7I5I3I5', 20, 1099511627776
-- Largest number of takes read with one GET, which costs less than the GETRANGEs of a bisection.
local WHOLE_MAX = 200

-- Returns the number of takes in the stored string; 0 if its length is not a multiple of SIZE or the key is not a
-- string.
local function count_stored(key)
  local bytes = redis.pcall('STRLEN', key)
  if type(bytes) == 'table' then
    return 0, not string.find(bytes.err, 'WRONGTYPE', 1, true) and bytes
  end
  return bytes % SIZE == 0 and bytes / SIZE or 0
end

-- Returns a stored take: time, sum, hits, number. `whole` is the string, if it was read whole.
local function stored_take(key, nth, whole)
  if whole then
    return struct.unpack(FORMAT, whole, (nth - 1) * SIZE + 1)
  end
  return struct.unpack(FORMAT, redis.call('GETRANGE', key, (nth - 1) * SIZE, nth * SIZE - 1))
end

-- Returns the first index in from..to for which `holds` is true, or to + 1. `holds` must be monotonic.
local function first_that(from, to, holds)
  to = to + 1
  while from < to do
    local middle = math.floor((from + to) / 2)
    if holds(middle) then to = middle else from = middle + 1 end
  end
  return from
end

local function take_of(state, nth)
  if nth > state.kept then
    return unpack(state.added[nth - state.kept])
  end
  return stored_take(state.key, nth, state.whole)
end

local function length_of(state)
  return state.kept + #state.added
end

local function counted(state)
  return (state.total - state.before) % ROUND
end

local function copy(state)
  local after = {}
  for name, value in pairs(state) do
    after[name] = value
  end
  after.added = { unpack(state.added) }
  return after
end

local function load(key, limit, at)
  local length = limit[at + 3]
  local stored, err = count_stored(key)
  if err then
    return nil, err
  end
  local state = {
    key = key, stored = stored, kept = stored, added = {},
    first = 1, before = 0, total = 0, next = 0, newest = 0,
  }
  if stored == 0 then
    return state
  end
  state.whole = stored <= WHOLE_MAX and redis.call('GET', key)
  local newest, total, _, number = take_of(state, stored)
  state.total, state.next = total, number + 1
  -- If the clock stepped back, time stands still, so that expired takes stay expired.
  local still = math.max(newest, now)
  state.first = stored + 1
  if newest + length > still then
    state.first = first_that(1, stored, function(nth)
      return (take_of(state, nth)) + length > still
    end)
  end
  if state.first > stored then
    state.before = total
  else
    local _, sum, hits = take_of(state, state.first)
    state.newest, state.before = newest, (sum - hits) % ROUND
  end
  return state
end

-- Returns the state in which takes later than `horizon`, a window ahead, count as taken now.
local function clamp(state, horizon)
  state.whole = state.whole or redis.call('GET', state.key)
  local after, past, present, future = copy(state), {}, {}, {}
  for nth = state.first, length_of(state) do
    local at, _, hits, number = take_of(state, nth)
    local into = at > horizon and present or at <= now and past or future
    into[#into + 1] = { at > horizon and now or at, 0, hits, number }
  end
  after.kept, after.first, after.added, after.before, after.total, after.newest = 0, 1, {}, 0, 0, 0
  for _, takes in ipairs({ past, present, future }) do
    for _, take in ipairs(takes) do
      after.total = (after.total + take[3]) % ROUND
      take[2], after.newest = after.total, take[1]
      after.added[#after.added + 1] = take
    end
  end
  return after
end

-- Returns the microseconds until `cost` hits pass: 0 if they pass now, nil if they never do.
local function until_passes(state, cost, hits, length)
  if cost > hits then
    return nil
  elseif counted(state) + cost <= hits then
    return 0
  end
  local last = length_of(state)
  local nth = first_that(state.first, last, function(nth)
    local _, sum = take_of(state, nth)
    return (state.total - sum) % ROUND + cost <= hits
  end)
  local opens = nth <= last and (take_of(state, nth)) + length - now or 1
  return math.max(opens, 1)
end

-- Adds a take in place. Returns its time and its number.
local function push(state, hits)
  local at = math.max(state.newest, now)
  -- An empty log must equal a missing one, whose numbers start at 0.
  local number = counted(state) > 0 and state.next or 0
  state.total, state.newest, state.next = (state.total + hits) % ROUND, at, (number + 1) % ROUND
  state.added[#state.added + 1] = { at, state.total, hits, number }
  return at, number
end

-- Returns the state without the newest `hits` hits.
local function drop_newest(state, hits)
  local left, after, last = math.max(counted(state) - hits, 0), copy(state), 0
  after.kept, after.added, after.newest, after.total = 0, {}, 0, (state.before + left) % ROUND
  if left == 0 then
    after.first = 1
  else
    last = first_that(state.first, length_of(state), function(nth)
      local _, sum = take_of(state, nth)
      return (sum - state.before) % ROUND >= left
    end)
    local at, sum, had, number = take_of(state, last)
    after.kept = math.min(last - 1, state.kept)
    for nth = state.kept + 1, last - 1 do
      after.added[#after.added + 1] = { take_of(state, nth) }
    end
    after.added[#after.added + 1] = { at, after.total, had - (sum - after.total) % ROUND, number }
    after.newest = at
  end
  return after
end

local function step(state, op, cost, limit, at)
  local hits, length, write = limit[at + 1], limit[at + 3], nil
  local clamped = state.newest > now + length
  if clamped then
    state = clamp(state, now + length)
    write = state
  end
  if op == 'refund' then
    if cost > 0 and counted(state) > 0 then
      write = drop_newest(state, cost)
    end
    return true, 0, 0, 0, 0, write, clamped
  end
  local wait, charged = until_passes(state, cost, hits, length), 0
  local passes = wait == 0
  if op ~= 'peek' and passes then
    charged = cost
  elseif op == 'debt' then
    charged = math.max(math.min(cost, limit[at + 2] - counted(state)), 0)
  end
  if charged == 0 then
    return passes, wait or 0, 0, 0, 0, write, clamped
  end
  -- Only the first take copies the state, because copies would make a call of many takes quadratic.
  local after = state
  if op == 'take' and not state.is_admitted then
    after = copy(state)
    after.is_admitted = true
  end
  local since, entry = push(after, charged)
  if not passes then
    -- The debt that was just charged makes the wait longer.
    wait = until_passes(after, cost, hits, length)
  end
  return passes, wait or 0, charged, since, entry, after, clamped
end

local function report(state, limit, at)
  local reset = state.newest > 0 and state.newest + limit[at + 3] - now or 0
  return math.max(limit[at + 1] - counted(state), 0), math.max(reset, 0)
end

local function save(key, state, limit, at)
  if counted(state) == 0 then
    redis.call('PEXPIRE', key, -1)
    return
  end
  local bytes, last = {}, -1
  for nth, take in ipairs(state.added) do
    bytes[nth], last = struct.pack(FORMAT, unpack(take)), take[4]
  end
  local ms = loadfile('ttl.lua')(state.newest + limit[at + 3] - now, extra_ms)
  local over, counting = state.first - 1, length_of(state) - state.first + 1
  if state.kept == state.stored and state.kept > 0 and over <= counting then
    redis.call('APPEND', key, table.concat(bytes))
    redis.call('PEXPIRE', key, ms)
    return
  end
  if last + 1 ~= state.next then
    -- The last take was dropped. A take of 0 hits in its place keeps its sequence number.
    bytes[#bytes + 1] = struct.pack(FORMAT, state.newest, state.total, 0, (state.next - 1) % ROUND)
  end
  if state.kept >= state.first then
    table.insert(bytes, 1, redis.call('GETRANGE', key, over * SIZE, state.kept * SIZE - 1))
  end
  redis.call('SET', key, table.concat(bytes), 'PX', ms)
end

-- Removes the receipt's take and rewrites the takes after it, usually few. Also removes expired takes: if
-- the removed take was the newest, they would count again after a step back of the clock.
local function refund(key, limit, at, _, taken_at, _, number)
  local length = limit[at + 3]
  local stored, err = count_stored(key)
  local still = stored > 0 and math.max((stored_take(key, stored)), now)
  local first = first_that(1, stored, function(nth)
    return (stored_take(key, nth)) + length > still
  end)
  local nth = first_that(first, stored, function(nth)
    return (stored_take(key, nth)) >= taken_at
  end)
  while nth <= stored do
    local time, _, hits, found = stored_take(key, nth)
    if time ~= taken_at then
      break
    elseif found == number and hits > 0 then
      local bytes, newest = {}, nth > first and stored_take(key, nth - 1) or 0
      local rest = nth < stored and redis.call('GETRANGE', key, nth * SIZE, -1)
      for later = 1, stored - nth do
        local time, sum, left, same = stored_take(key, later, rest)
        newest = left > 0 and time or newest
        bytes[#bytes + 1] = struct.pack(FORMAT, newest, (sum - hits) % ROUND, left, same)
      end
      if newest == 0 then
        redis.call('PEXPIRE', key, -1)
        return true
      end
      if nth > first then
        table.insert(bytes, 1, redis.call('GETRANGE', key, (first - 1) * SIZE, (nth - 1) * SIZE - 1))
      end
      redis.call('SET', key, table.concat(bytes), 'PX', loadfile('ttl.lua')(newest + length - now, extra_ms))
      return true
    end
    nth = nth + 1
  end
  return false, err
end

return { load = load, step = step, report = report, save = save, refund = refund }
