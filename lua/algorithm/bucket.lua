#!lua
-- Token bucket (letter b) and leaky bucket (letter l): holds `burst` hits and refills evenly.
-- algorithms.lua describes the functions.
--
-- A bucket's debt is counted in credits: `ahead` whole microseconds until the bucket is full, each worth
-- `rate` credits, plus `rem` credits, fewer than `rate`. If a hit refills in a whole number of
-- microseconds ("arrival form"), rate is 1, a credit is a microsecond, and rem is 0. Otherwise ("credit
-- form") a hit is worth as many credits as the window has microseconds, and rate is the hits per window,
-- which is exact for any rate.
--
-- limit      +1  burst: hits
--            +2  cap: the largest debt in credits; a larger one is clamped
--            +3  unit: credits per hit
--            +4  rate: credits per microsecond
--            +5  floor: hits that must be available before a take
-- State      one integer, the time in microseconds at which the bucket is full ("theoretical arrival
--            time"), followed by a colon and rem unless rem is 0
-- Expiry     when the bucket is full, because a missing counter counts as full
--
-- Numbers are doubles. They are exact here, because all are below 2^53. Never tostring a timestamp: it rounds.
local now, extra_ms, only_refund = ...

-- Largest debt that is exact in a double. A refund is cut to it.
local CREDITS_MAX = 9007199254740992

local function parse(value)
  if not value then
    return nil
  end
  local tat, rem = tonumber(value), 0
  if not tat then
    local whole, part = string.match(value, '^(%d+):(%d+)$')
    tat, rem = tonumber(whole), tonumber(part)
  end
  return tat and { tat = tat, rem = rem }
end

local function load(key)
  local value, err = loadfile('read_string.lua')(key)
  return parse(value), err
end

-- Returns the current debt under a limit of this rate and cap: ahead, rem, clamped. Rounds up a rem that was
-- stored under another rate. If the debt is more than a second above the cap, the clock stepped back or the
-- limit was lowered, and the debt is clamped to the cap. Refunds subtract from the debt as it is stored.
local function read(state, rate, cap, op)
  if not (state and state.tat >= now) then
    return 0, 0, false
  end
  -- Only a value that another program wrote has a fraction of a microsecond.
  local ahead, rem = math.ceil(state.tat - now), state.rem
  if rem >= rate then
    ahead, rem = ahead + 1, 0
  end
  cap = op == 'refund' and CREDITS_MAX or cap
  if (ahead - 1000000) * rate > cap then
    rem = cap % rate
    return (cap - rem) / rate, rem, true
  end
  return ahead, rem, false
end

-- Returns the debt plus `credits`, which may be negative.
local function charge(ahead, rem, credits, rate)
  if credits == -math.huge then
    return 0, 0
  end
  local part = (rem + credits) % rate
  ahead = ahead + (rem + credits - part) / rate
  if ahead < 0 then
    return 0, 0
  end
  return ahead, part
end

local function save(key, state)
  local text = string.format(state.rem > 0 and '%d:%d' or '%d', state.tat, state.rem)
  redis.call('SET', key, text, 'PX', loadfile('ttl.lua')(state.tat - now, extra_ms))
end

-- Refunds the hits minus those that may have refilled since the charge. A full refund would grant those twice.
local function refund(key, limit, at, hits, taken_at)
  local cap, unit, rate = limit[at + 2], limit[at + 3], limit[at + 4]
  local state, err = load(key)
  local ahead, rem, clamped = read(state, rate, cap, 'refund')
  local credits = math.min(hits * unit, cap) - math.max(now - taken_at, 0) * rate
  local lowers = credits > 0 and (ahead > 0 or rem > 0)
  if lowers then
    ahead, rem = charge(ahead, rem, -credits, rate)
  end
  if lowers or clamped then
    save(key, { tat = now + ahead, rem = rem })
  end
  return lowers or clamped, err
end

if only_refund then
  return { refund = refund }
end

-- Returns the microseconds until `cost` hits pass: 0 or less if they pass now, nil if they never do.
local function until_passes(ahead, rem, cost, limit, at)
  local floor, rate = limit[at + 5], limit[at + 4]
  -- When the last of the hits is taken, `floor` hits must be available, that one included.
  local spare = limit[at + 1] - cost - (floor > 1 and floor - 1 or 0)
  if spare < 0 then
    return nil
  end
  local room = spare * limit[at + 3] - rem
  return ahead - (room - room % rate) / rate
end

local function step(state, op, cost, limit, at, held)
  local cap, unit, rate = limit[at + 2], limit[at + 3], limit[at + 4]
  local needed = cost + (held or 0)
  local ahead, rem, clamped = read(state, rate, cap, op)
  local wait, credits = 0, 0
  if op == 'refund' then
    credits = cost * unit < CREDITS_MAX and -cost * unit or -math.huge
  else
    wait = until_passes(ahead, rem, needed, limit, at)
    if op == 'take' and wait and wait <= 0 then
      credits = cost * unit
    elseif op == 'debt' then
      credits = math.max(math.min(cost * unit, cap - ahead * rate - rem), 0)
    end
  end
  local write = nil
  if clamped or credits > 0 or credits < 0 and (ahead > 0 or rem > 0) then
    ahead, rem = charge(ahead, rem, credits, rate)
    write = { tat = now + ahead, rem = rem }
  end
  local charged = credits > 0 and (credits - credits % unit) / unit or 0
  if wait and wait <= 0 then
    return true, 0, charged, now, 0, write, clamped
  elseif credits > 0 then
    -- The debt that was just charged makes the wait longer.
    wait = until_passes(ahead, rem, needed, limit, at)
  end
  return false, wait or 0, charged, now, 0, write, clamped
end

-- Returns how many calls of one hit would pass. Each needs max(floor, 1) available hits.
local function report(state, limit, at)
  local unit, rate, floor = limit[at + 3], limit[at + 4], limit[at + 5]
  local ahead, rem = read(state, rate, limit[at + 2])
  local left = limit[at + 1] * unit - ahead * rate - rem
  local available = (left - left % unit) / unit + 1 - (floor > 1 and floor or 1)
  return available > 0 and available or 0, rem > 0 and ahead + 1 or ahead
end

return { read = read, parse = parse, load = load, step = step, report = report, save = save, refund = refund }
