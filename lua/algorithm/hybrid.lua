#!lua
-- Hybrid consumer classes: a guaranteed bucket for each class, and a common pool with floors.
-- algorithms.lua describes the functions, src/algorithm/hybrid.rs the formulas.
--
-- limit      +1  burst: capacity of all buckets and the pool together, in hits
--            +2  unit: credits per hit, 100 for each tick of the window
--            +3  tick_us
--            +4  hits: per window
--            +5  class: counted from 1
--            +6  floor: per cent of the pool
--            +7  expiry: ticks until everything is full again after being empty
--            +8  classes: their number
--            +9 and on: each class's share, per cent
-- State      numbers separated by colons: the tick of the last write, the pool's credits, and the
--            credits of each class's own bucket
-- Expiry     when everything would be full again after being empty (src/algorithm/hybrid.rs says why)
--
-- The wait of a refused check is found by bisection, in at most 53 steps.
-- Numbers are doubles. They are exact here, because all are below 2^53. Never tostring a timestamp: it rounds.
local now, extra_ms = ...

local function div_floor(a, b)
  return (a - a % b) / b
end

local function div_ceil(a, b)
  return (a + (b - a % b) % b) / b
end

-- Returns the limit in credits and ticks.
local function terms_of(limit, at)
  local total, hits = limit[at + 1] * limit[at + 2], limit[at + 4]
  local terms = {
    total = total, unit = limit[at + 2], tick = limit[at + 3], hits = hits, class = limit[at + 5],
    floor = limit[at + 6], cap = {}, flow = {}, caps = 0, spare = 100,
  }
  local slowest
  for class = 1, limit[at + 8] do
    local share = limit[at + 8 + class]
    terms.cap[class], terms.flow[class] = total / 100 * share, share * hits
    terms.caps, terms.spare = terms.caps + terms.cap[class], terms.spare - share
    if share > 0 and (not slowest or terms.flow[class] < slowest) then
      slowest = terms.flow[class]
    end
  end
  terms.spare = terms.spare * hits
  if terms.spare > 0 and (not slowest or terms.spare < slowest) then
    slowest = terms.spare
  end
  -- Ticks until everything is full from any state.
  terms.ticks_to_full = slowest and div_ceil(total, slowest) or 0
  terms.now = div_floor(now, terms.tick)
  return terms
end

-- Returns the maximum number of credits in the pool.
local function room_of(terms, own)
  local room = terms.total
  for class = 1, #terms.cap do
    room = room - own[class]
  end
  return math.max(room, 0)
end

-- Returns the credits that flow in within `ticks`, at most twice the total: more has no effect, and the
-- bound keeps sums exact.
local function gain(terms, flow, ticks)
  local most = terms.total * 2
  if flow > 0 and ticks > div_floor(most, flow) then
    return most
  end
  return flow * ticks
end

-- Returns the classes' own buckets after `ticks`, and the pool, not yet cut to its maximum.
local function grown(terms, state, ticks)
  local own, pool = {}, state.pool + gain(terms, terms.spare, ticks)
  for class, cap in ipairs(terms.cap) do
    local wants = state.own[class] + gain(terms, terms.flow[class], ticks)
    pool = math.min(pool, terms.total) + math.max(wants - cap, 0)
    own[class] = math.min(wants, cap)
  end
  return own, pool
end

local function refilled(terms, state, ticks)
  local own, pool = grown(terms, state, ticks)
  return { last = state.last + ticks, pool = math.min(pool, room_of(terms, own)), own = own }
end

-- Returns the current state, and whether the stored one was from the far future: then everything is empty. If the
-- stored state has another number of classes than the limit, everything is full.
local function read(terms, state)
  if not state or #state.own ~= #terms.cap then
    local pool = math.max(terms.total - terms.caps, 0)
    return { last = terms.now, pool = pool, own = { unpack(terms.cap) } }, false
  end
  local own, none = {}, {}
  for class, cap in ipairs(terms.cap) do
    own[class], none[class] = math.min(state.own[class], cap), 0
  end
  if state.last > terms.now + terms.ticks_to_full + 1 then
    return { last = terms.now, pool = 0, own = none }, true
  end
  local fitting = { last = state.last, pool = math.min(state.pool, terms.total), own = own }
  return refilled(terms, fitting, math.max(terms.now - state.last, 0)), false
end

-- Returns the credits that the pool must hold for a take of `credits`.
local function needed(terms, own, credits)
  local mine = own[terms.class]
  local rest = credits - mine
  if rest <= 0 then
    return 0
  end
  -- Each hit needs the pool to be at its floor, so the last one needs it after all others were taken.
  local last = math.min(rest, terms.unit)
  local mine_before_last = rest > terms.unit and 0 or mine % terms.unit
  local room = math.max(room_of(terms, own) + mine - mine_before_last, 0)
  local size = terms.caps < terms.total and terms.total - terms.caps or room
  local part = div_floor(size, 100) * terms.floor + div_ceil(size % 100 * terms.floor, 100)
  local floor = div_ceil(part, terms.unit) * terms.unit
  if terms.caps >= terms.total then
    floor = math.min(floor, room)
  end
  return rest - last + math.max(last, floor)
end

-- Returns the ticks until a refused take of `credits` passes; nil if it never does.
local function ticks_until_passes(terms, state, credits)
  local fails, passes = 0, terms.ticks_to_full
  local function reached(ticks)
    local own, pool = grown(terms, state, ticks)
    return pool >= needed(terms, own, credits)
  end
  if not reached(passes) then
    return nil
  end
  while passes - fails > 1 do
    local middle = fails + div_floor(passes - fails, 2)
    if reached(middle) then passes = middle else fails = middle end
  end
  local after = refilled(terms, state, passes)
  return after.pool >= needed(terms, after.own, credits) and passes or nil
end

-- Returns the state after a refund. What does not fit into the own bucket goes into the pool.
local function returned(terms, state, to_own, to_pool)
  local own = { unpack(state.own) }
  local fitting = math.min(to_own, math.max(terms.cap[terms.class] - own[terms.class], 0))
  own[terms.class] = own[terms.class] + fitting
  local pool = math.min(state.pool + to_own - fitting + to_pool, room_of(terms, own))
  return { last = state.last, pool = pool, own = own }
end

-- Returns the microsecond in which everything is full again.
local function full_at(terms, state)
  local ticks, held = 0, state.pool
  for class, cap in ipairs(terms.cap) do
    held = held + state.own[class]
    if cap > state.own[class] then
      ticks = math.max(ticks, div_ceil(cap - state.own[class], math.max(terms.flow[class], 1)))
    end
  end
  ticks = math.max(ticks, div_ceil(math.max(terms.total - held, 0), 100 * math.max(terms.hits, 1)))
  return (state.last + ticks) * terms.tick
end

local function load(key)
  local value, err = loadfile('read_string.lua')(key)
  if not (value and string.match(value, '^[%d:]+$')) then
    return nil, err
  end
  local numbers = {}
  for number in string.gmatch(value, '%d+') do
    numbers[#numbers + 1] = number + 0
  end
  if #numbers < 2 then
    return nil
  end
  return { last = numbers[1], pool = numbers[2], own = { unpack(numbers, 3) } }
end

local function step(state, op, cost, limit, at)
  local terms = terms_of(limit, at)
  local present, clamped = read(terms, state)
  local credits, write = cost * terms.unit, clamped and present or nil
  if op == 'refund' then
    write = state and returned(terms, present, math.min(credits, terms.total), 0) or write
    return true, 0, 0, 0, 0, write, clamped
  elseif credits > terms.total then
    return false, 0, 0, 0, 0, write, clamped
  elseif present.pool < needed(terms, present.own, credits) then
    local ticks = ticks_until_passes(terms, present, credits)
    local wait = ticks and (present.last + ticks) * terms.tick - now or 0
    return false, wait, 0, 0, 0, write, clamped
  elseif op == 'peek' then
    return true, 0, 0, 0, 0, write, clamped
  end
  local own = { unpack(present.own) }
  local from_own = math.min(own[terms.class], credits)
  own[terms.class] = own[terms.class] - from_own
  write = { last = present.last, pool = present.pool - credits + from_own, own = own }
  return true, 0, cost, now, credits - from_own, write, clamped
end

-- After the whole hits of the own bucket, one hit takes the bucket's remainder and the rest from the pool.
-- All later hits come from the pool alone. Each one checks the floor first.
local function report(state, limit, at)
  local terms = terms_of(limit, at)
  local present = read(terms, state)
  local own, mine = { unpack(present.own) }, present.own[terms.class]
  local available = div_floor(mine, terms.unit)
  own[terms.class] = mine % terms.unit
  if present.pool >= needed(terms, own, terms.unit) then
    local left = present.pool - terms.unit + own[terms.class]
    own[terms.class] = 0
    left = left - needed(terms, own, terms.unit)
    available = available + 1 + (left >= 0 and div_floor(left, terms.unit) + 1 or 0)
  end
  return available, math.max(full_at(terms, present) - now, 0)
end

local function save(key, state, limit, at)
  local terms, text = terms_of(limit, at), { string.format('%d:%d', state.last, state.pool) }
  for class = 1, #state.own do
    text[class + 1] = string.format('%d', state.own[class])
  end
  local ends = #state.own == #terms.cap and (state.last + limit[at + 7]) * terms.tick or now
  redis.call('SET', key, table.concat(text, ':'), 'PX', loadfile('ttl.lua')(ends - now, extra_ms))
end

-- Refunds the hits minus those that may have refilled since the charge: to the own bucket at most what
-- was taken from it, the rest to the pool. Refunds nothing if the number of classes has changed since
-- the charge, because that reset the counter.
local function refund(key, limit, at, hits, taken_at, _, from_pool)
  local terms = terms_of(limit, at)
  local state, err = load(key)
  local ticks = math.max(terms.now - div_floor(taken_at, terms.tick), 0)
  local credits = hits * terms.unit - ticks * 100 * terms.hits
  if not state or #state.own ~= #terms.cap or credits <= 0 then
    return false, err
  end
  local present = read(terms, state)
  local to_own = math.min(math.max(hits * terms.unit - from_pool, 0), credits)
  save(key, returned(terms, present, to_own, credits - to_own), limit, at)
  return true
end

return { load = load, step = step, report = report, save = save, refund = refund }
