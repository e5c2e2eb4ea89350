#!lua
-- Fixed window: at most `hits` hits in each window. Windows have one length and are aligned to the Unix
-- epoch (letter w), or are the days, weeks, months or years of a time zone (letter k).
-- algorithms.lua describes the functions.
--
-- limit      +1  hits
--            +2  unit_us: unit of the windows' numbers: the length or, for calendar windows, a second
--            only for calendar windows, by the caller's clock:
--            +3  previous: the previous window's start; nil if all windows have one length
--            +4  current: the current window's start
--            +5  following: the next window's start
--            +6  last: the next window's end
-- State      one integer: the window's number (its start in units) modulo 900,000,000, then the count
--            in ten decimal digits. So a hit in the same window is an INCRBY, the cheapest write, and
--            Redis stores 8 bytes. (Numbers in seconds wrap after 28 years. Keys expire long before, and
--            up to 14 years apart, the past can be told from the future.)
--            A value without a window's number (below 10^10) counts as missing.
--            The count may be above the limit, after a debt or because the limit was lowered. It is not
--            reduced to the limit.
-- Expiry     when the window ends
--
-- Numbers are doubles. They are exact here, because all are below 2^53. Never tostring a timestamp: it rounds.
local now, extra_ms, only_refund = ...

-- Refunds to the window charged, if the counter still holds that window.
local function refund(key, limit, at, hits, _, window)
  local value, err = loadfile('read_string.lua')(key)
  local number, count = window / limit[at + 2] % 900000000, 0
  if tonumber(value) and (tonumber(string.sub(value, 1, -11)) or 0) == number then
    count = tonumber(string.sub(value, -10)) or 0
  end
  local changed = count > 0 and redis.pcall('INCRBY', key, -math.min(count, hits))
  return tonumber(changed) ~= nil, err
end

if only_refund then
  return { refund = refund }
end

-- Largest count that debts can reach.
local COUNT_MAX = 4294967295

-- Returns the start and end of the current window and the end of the next; nil if the server's clock is
-- outside a calendar's windows.
local function span(limit, at)
  local previous, current, following, last = limit[at + 3], limit[at + 4], limit[at + 5], limit[at + 6]
  if not previous then
    local unit = limit[at + 2]
    local start = now - now % unit
    return start, start + unit, start + 2 * unit
  elseif now < previous or now >= last then
    return nil
  elseif now < current then
    return previous, current, following
  elseif now < following then
    return current, following, last
  end
  return following, last, nil
end

-- Returns start, count, and end of the window in force, and whether the state was from the far future. Such a
-- state is clamped to a full current window.
local function read(state, limit, at)
  local start, stop, after = span(limit, at)
  if not state or state.start < start then
    return start, 0, stop, false
  end
  if state.start > stop then
    return start, math.max(state.count, limit[at + 1]), stop, true
  end
  -- If the clock stepped back, the state may be in the next window: time stands still at that window's start.
  return state.start, state.count, state.start == stop and after or stop, false
end

-- Parses a stored value. Returns the state, or an error if the clock is outside the calendar's windows. `stored` is
-- the count in Redis, which INCRBY can increase.
local function parse(value, limit, at)
  local start, stop, after = span(limit, at)
  if not start then
    return nil, { -1 }
  end
  local text, unit = value or '', limit[at + 2]
  local head, count = string.sub(text, 1, -11), tonumber(string.sub(text, -10))
  local number = head == '' and 0 or tonumber(head)
  -- Scripts write no larger number. It would count as the current window forever.
  if not (number and number >= 0 and number < 900000000 and count) then
    return nil
  end
  local ahead = (number - start / unit) % 900000000
  if not (ahead < 450000000 and ahead % 1 == 0 and count >= 0 and count < 1e10 and count % 1 == 0) then
    return nil
  end
  start = start + ahead * unit
  if number < 1 and start > stop then
    -- INCRBY has created the value without a window's number. As a window of the far future, it would be clamped
    -- to a full one.
    return nil
  elseif start == stop and not after then
    return nil, { -1 }
  end
  return { start = start, count = count, stored = count }
end

local function load(key, limit, at)
  local value, err = loadfile('read_string.lua')(key)
  if err then
    return nil, err
  end
  return parse(value, limit, at)
end

local function step(state, op, cost, limit, at, held)
  local hits, needed = limit[at + 1], cost + (held or 0)
  local start, had, stop, clamped = read(state, limit, at)
  local count, passes, wait = had, true, 0
  if op == 'refund' then
    count = had > cost and had - cost or 0
  else
    passes = had + needed <= hits
    if not passes and needed <= hits then
      wait = stop - now
    end
    if op == 'take' and passes or op == 'debt' then
      count = math.max(math.min(had + cost, COUNT_MAX), had)
    end
  end
  local write = nil
  if clamped or count ~= had or op == 'refund' and had > 0 then
    write = { start = start, count = count, stored = not clamped and state and state.start == start and state.stored }
  end
  return passes, wait, count > had and count - had or 0, start, 0, write, clamped
end

local function report(state, limit, at)
  local _, count, stop = read(state, limit, at)
  local left = limit[at + 1] - count
  return left > 0 and left or 0, stop - now
end

local function save(key, state, limit, at)
  -- INCRBY fails if the stored text is not a whole number; SET then replaces it.
  if state.stored and tonumber(redis.pcall('INCRBY', key, state.count - state.stored)) then
    return
  end
  local _, stop, after = span(limit, at)
  if state.start == stop and after then
    stop = after
  end
  local text = string.format('%d%010d', state.start / limit[at + 2] % 900000000, state.count)
  redis.call('SET', key, text, 'PX', loadfile('ttl.lua')(stop - now, extra_ms))
end

return { read = read, parse = parse, load = load, step = step, report = report, save = save, refund = refund }
