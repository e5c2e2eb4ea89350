#!lua
-- Hybrid consumer classes: a guaranteed bucket for each class, and a common pool with floors.
-- Blocks of apply.lua and give_back.lua; not a script alone.
--
-- KEYS[i]  the counter of all classes
-- ARGV[1]  now_us, as everywhere
-- of each check:
--   +2  cost: hits, at most one more than burst
--   +3  burst: hits of everything together
--   +4  terms: burst (hits), unit (credits per hit: 100 for each tick of the window), tick_us, hits
--       per window, class (from 1), floor (per cent of the pool), and each class's share (per cent);
--       with blanks between
--
-- State    numbers with colons between: the tick it was written in, the pool's credits, and each
--          class's own
-- Expiry   the time until everything is full and at most 2 ms
-- Reply    apply.lua's six numbers; entry is the class, counted from 0
-- Cost     TIME, GET and SET; refused: no write, and a bisection of at most 53 steps for the wait

-- begin functions: last (a tick), pool, own[class]
f.terms = function(text)
  local n = {}
  for number in string.gmatch(text, '%d+') do n[#n + 1] = number + 0 end
  local t = { total = n[1] * n[2], unit = n[2], tick = n[3], class = n[5], floor = n[6] }
  t.cap, t.flow, t.caps, t.spare, t.hits = {}, {}, 0, 100, n[4]
  local slowest
  for nth = 7, #n do
    local class = nth - 6
    t.cap[class], t.flow[class] = t.total / 100 * n[nth], n[nth] * n[4]
    t.caps, t.spare = t.caps + t.cap[class], t.spare - n[nth]
    if n[nth] > 0 and (not slowest or t.flow[class] < slowest) then slowest = t.flow[class] end
  end
  t.spare = t.spare * n[4]
  if t.spare > 0 and (not slowest or t.spare < slowest) then slowest = t.spare end
  t.fills, t.at = slowest and f.up(t.total, slowest) or 0, f.down(now, t.tick)
  return t
end
f.down = function(a, b) return (a - a % b) / b end
f.up = function(a, b) return (a + (b - a % b) % b) / b end
f.room = function(t, own)
  local room = t.total
  for class = 1, #t.cap do room = room - own[class] end
  return room > 0 and room or 0
end
-- What flows in: more than twice everything is no different from it.
f.gain = function(t, flow, ticks)
  local most = t.total * 2
  if flow > 0 and ticks > f.down(most, flow) then return most end
  return flow * ticks
end
f.grown = function(t, s, ticks)
  local own, pool = {}, s.pool + f.gain(t, t.spare, ticks)
  for class, cap in ipairs(t.cap) do
    local wants = s.own[class] + f.gain(t, t.flow[class], ticks)
    pool = math.min(pool, t.total) + math.max(wants - cap, 0)
    own[class] = math.min(wants, cap)
  end
  return own, pool
end
f.refilled = function(t, s, ticks)
  local own, pool = f.grown(t, s, ticks)
  return { last = s.last + ticks, pool = math.min(pool, f.room(t, own)), own = own }
end
f.full = function(t)
  return { last = t.at, pool = math.max(t.total - t.caps, 0), own = { unpack(t.cap) } }
end
f.read = function(t, s)
  if not s or #s.own ~= #t.cap then return f.full(t), false end
  local own, none = {}, {}
  for class, cap in ipairs(t.cap) do own[class], none[class] = math.min(s.own[class], cap), 0 end
  if s.last > t.at + t.fills + 1 then return { last = t.at, pool = 0, own = none }, true end
  local fitting = { last = s.last, pool = math.min(s.pool, t.total), own = own }
  return f.refilled(t, fitting, math.max(t.at - s.last, 0)), false
end
-- What the pool must hold for a take of so many credits.
f.needed = function(t, own, credits)
  local rest = credits - own[t.class]
  if rest <= 0 then return 0 end
  local room = f.room(t, own)
  local size = t.caps < t.total and t.total - t.caps or room
  local part = f.down(size, 100) * t.floor + f.up(size % 100 * t.floor, 100)
  local floor = f.up(part, t.unit) * t.unit
  if t.caps >= t.total then floor = math.min(floor, room) end
  return math.max(rest, floor)
end
f.wait = function(t, s, credits)
  local fails, passes = 0, t.fills
  local function reached(ticks)
    local own, pool = f.grown(t, s, ticks)
    return pool >= f.needed(t, own, credits)
  end
  if not reached(passes) then return end
  while passes - fails > 1 do
    local middle = fails + f.down(passes - fails, 2)
    if reached(middle) then passes = middle else fails = middle end
  end
  local after = f.refilled(t, s, passes)
  return after.pool >= f.needed(t, after.own, credits) and passes or nil
end
f.returned = function(t, s, credits)
  local own = { unpack(s.own) }
  local to_own = math.min(credits, math.max(t.cap[t.class] - own[t.class], 0))
  own[t.class] = own[t.class] + to_own
  return { last = s.last, pool = math.min(s.pool + credits - to_own, f.room(t, own)), own = own }
end
f.fills_in = function(t, s)
  local ticks, held = 0, s.pool
  for class, cap in ipairs(t.cap) do
    held = held + s.own[class]
    if cap > s.own[class] then
      ticks = math.max(ticks, f.up(cap - s.own[class], math.max(t.flow[class], 1)))
    end
  end
  return math.max(ticks, f.up(math.max(t.total - held, 0), 100 * math.max(t.hits, 1)))
end
f.load = function(key)
  -- insert fixed_window.get
  if not (value and string.match(value, '^[%d:]+$')) then return false end
  local n = {}
  for number in string.gmatch(value, '%d+') do n[#n + 1] = number + 0 end
  if #n < 2 then return false end
  return { last = n[1], pool = n[2], own = { unpack(n, 3) } }
end
f.step = function(s, op, cost, _, terms)
  local t = f.terms(terms)
  local now_s, far = f.read(t, s)
  local after = far and now_s or nil
  if op == 103 then
    if s then after = f.returned(t, now_s, math.min(cost * t.unit, t.total)) end
    return after, true, 0, 0, 0, 0, far
  end
  local credits = cost * t.unit
  if credits > t.total then return after, false, 0, 0, 0, 0, far end
  if now_s.pool < f.needed(t, now_s.own, credits) then
    local ticks = f.wait(t, now_s, credits)
    return after, false, ticks and (now_s.last + ticks) * t.tick - now or 0, 0, 0, 0, far
  elseif op == 112 then
    return after, true, 0, 0, 0, 0, far
  end
  local own = { unpack(now_s.own) }
  local from_own = math.min(own[t.class], credits)
  own[t.class] = own[t.class] - from_own
  after = { last = now_s.last, pool = now_s.pool - credits + from_own, own = own }
  return after, true, 0, cost, now, t.class - 1, far
end
f.tell = function(s, _, terms)
  local t = f.terms(terms)
  s = f.read(t, s)
  local reset = (s.last + f.fills_in(t, s)) * t.tick - now
  -- The hit that is not all in the own bucket takes its rest from the pool, and from then on each
  -- takes all of itself; each looks at the floor before it takes.
  local own, available = { unpack(s.own) }, f.down(s.own[t.class], t.unit)
  own[t.class] = s.own[t.class] % t.unit
  if s.pool >= f.needed(t, own, t.unit) then
    local left = s.pool - t.unit + own[t.class]
    own[t.class] = 0
    left = left - f.needed(t, own, t.unit)
    available = available + 1 + (left >= 0 and f.down(left, t.unit) + 1 or 0)
  end
  return available, reset > 0 and reset or 0
end
f.save = function(key, s, _, terms)
  local t = f.terms(terms)
  local text = { string.format('%d:%d', s.last, s.pool) }
  for class = 1, #s.own do text[class + 1] = string.format('%d', s.own[class]) end
  local ends = #s.own == #t.cap and (s.last + f.fills_in(t, s)) * t.tick - now or 0
  local left = math.max(ends, 0) + 1999
  redis.call('SET', key, table.concat(text, ':'), 'PX', string.format('%d', (left - left % 1000) / 1000 + keep))
end
-- end functions

-- begin give_back: key, need (hits), at, terms -> lowered
local t, s = f.terms(terms), f.load(key)
if s and s.err then return s end
local since = math.max(t.at - f.down(at, t.tick), 0)
local back = need * t.unit - since * 100 * t.hits
if s and back > 0 then
  f.save(key, f.returned(t, (f.read(t, s)), back), nil, terms)
  lowered = lowered + 1
end
-- end give_back
