#!lua
-- Sliding window: about `hits` hits in any interval of one window's length. The previous window's hits
-- are weighted by the part of that window that the sliding window still covers.
-- algorithms.lua describes the functions.
--
-- limit      +1  hits
--            +2  cap: the largest count of a window that debts can reach
--            +3  length_us: at least a second
--            +4  tick_us: unit of time, so large that hits times ticks per window is below 2^53
-- State      three numbers separated by colons: the current window's number, the hits of the previous
--            window, and the hits of the current one. Hits may be above the limit, after a debt or because
--            the limit was lowered. They are not reduced to the limit.
-- Expiry     when the next window ends or, if the current one has no hits, when that ends
--
-- Numbers are doubles. They are exact here, because all are below 2^53. Never tostring a timestamp: it rounds.
local now, extra_ms, only_refund = ...

local function parse(value, limit, at)
  local number, prev, cur = string.match(value or '', '^(%d+):(%d+):(%d+)$')
  if not number then
    return nil
  end
  return { start = number * limit[at + 3], prev = prev + 0, cur = cur + 0 }
end

local function load(key, limit, at)
  local value, err = loadfile('read_string.lua')(key)
  return parse(value, limit, at), err
end

local function save(key, state, limit, at)
  local length = limit[at + 3]
  local text = string.format('%d:%d:%d', state.start / length, state.prev, state.cur)
  local ends = state.start + (state.cur > 0 and 2 or 1) * length
  redis.call('SET', key, text, 'PX', loadfile('ttl.lua')(ends - now, extra_ms))
end

-- Refunds to the window charged, if it is the counter's current or previous one.
local function refund(key, limit, at, hits, _, window)
  local state, err = load(key, limit, at)
  if not state then
    return false, err
  end
  local prev, cur = state.prev, state.cur
  if state.start == window and cur > 0 then
    cur = math.max(cur - hits, 0)
  elseif state.start == window + limit[at + 3] and prev > 0 then
    prev = math.max(prev - hits, 0)
  else
    return false
  end
  save(key, { start = state.start, prev = prev, cur = cur }, limit, at)
  return true
end

if only_refund then
  return { refund = refund }
end

-- Largest count that our scripts write.
local COUNT_MAX = 4294967295

-- Returns start, prev, and cur of the window in force, the ticks since it began, and whether the state was from
-- the far future. Such a state is clamped to a full current window.
local function read(state, limit, at)
  local length, tick = limit[at + 3], limit[at + 4]
  local start, prev, cur, clamped = now - now % length, 0, 0, false
  local from = start
  if state and state.start > now + length then
    cur, clamped = math.max(math.min(state.cur, COUNT_MAX), limit[at + 1]), true
  elseif state and state.start >= start then
    -- If the clock stepped back, the state may be in the next window: time stands still at that window's start.
    start, prev, cur = state.start, math.min(state.prev, COUNT_MAX), math.min(state.cur, COUNT_MAX)
    from = math.min(start, now)
  elseif state and state.start + length == start then
    prev = math.min(state.cur, COUNT_MAX)
  end
  return start, prev, cur, (now - from - (now - from) % tick) / tick, clamped
end

-- Returns the microseconds until `cost` hits pass: 0 if they pass now, nil if they never do.
local function until_passes(start, prev, cur, elapsed, cost, limit, at)
  local tick, spare = limit[at + 4], limit[at + 1] - cost
  local window = (limit[at + 3] - limit[at + 3] % tick) / tick
  if spare < 0 then
    return nil
  end
  local room, ticks = spare - cur, 0
  if room >= 0 and prev * (window - elapsed) <= room * window then
    return 0
  elseif room >= 0 then
    room = room * window
    ticks = window - math.min((room - room % prev) / prev, window)
  else
    -- The check passes in the next window, once enough of this window's hits have lost their weight.
    room = spare * window
    ticks = 2 * window - math.min((room - room % cur) / cur, window)
  end
  return math.max(start + ticks * tick - now, 1)
end

local function step(state, op, cost, limit, at)
  local start, prev, cur, elapsed, clamped = read(state, limit, at)
  local had_prev, had, charged, wait, passes = prev, cur, 0, 0, true
  if op == 'refund' then
    cur = math.max(had - cost, 0)
    prev = math.max(prev - (cost - (had - cur)), 0)
  else
    wait = until_passes(start, prev, cur, elapsed, cost, limit, at)
    passes = wait == 0
    if op == 'take' and passes or op == 'debt' then
      cur = math.max(math.min(cur + cost, limit[at + 2]), had)
      charged = cur - had
    end
    if charged > 0 and not passes then
      -- The debt that was just charged makes the wait longer.
      wait = until_passes(start, prev, cur, elapsed, cost, limit, at)
    end
  end
  local changed = clamped or prev ~= had_prev or cur ~= had
  local write = changed and { start = start, prev = prev, cur = cur } or nil
  return passes, wait or 0, charged, start, 0, write, clamped
end

local function report(state, limit, at)
  local length, tick = limit[at + 3], limit[at + 4]
  local start, prev, cur, elapsed = read(state, limit, at)
  local window = (length - length % tick) / tick
  local carried = prev * (window - elapsed)
  local available = limit[at + 1] - cur - (carried + (window - carried % window) % window) / window
  local windows = cur > 0 and 2 or prev > 0 and 1 or 0
  return math.max(available, 0), math.max(start + windows * length - now, 0)
end

return { read = read, parse = parse, load = load, step = step, report = report, save = save, refund = refund }
