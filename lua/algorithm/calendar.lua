#!lua
-- Fixed window of a calendar: so many hits in each day, week, month or year of a time zone.
-- Blocks of apply.lua and give_back.lua; not a script alone.
--
-- KEYS[i]  the counter
-- ARGV[1]  now_us, as everywhere
-- of each check:
--   +2  cost: hits
--   +3  limit: hits per window
--   +4  cap: the highest count
--   +5  bounds: the beginnings of the previous, the present and the next window by the process's
--       clock, and the end of that one, microseconds since the epoch, with blanks between
--
-- State    one integer: the window's beginning in seconds modulo 900,000,000, then the count in ten
--          decimal digits
-- Expiry   the window's end and at most 2 ms
-- Reply    apply.lua's six numbers; since is the window's beginning. Where the server's time is in
--          none of the three windows, the whole call is answered {-1} and nothing is written
-- Cost     TIME, GET and SET; refused: no write

-- begin functions: start, count
f.around = function(bounds)
  local a, b, c, d = string.match(bounds, '^(%d+) (%d+) (%d+) (%d+)$')
  a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  if now < a or now >= d then return nil end
  if now < b then return a, b, c end
  if now < c then return b, c, d end
  return c, d
end
f.load = function(key, _, _, bounds)
  local start, stop, after = f.around(bounds)
  if not start then return { misfit = true } end
  local value = redis.pcall('GET', key)
  -- A number beyond any of ours would seem to be of the present window for ever.
  local number = tonumber(value) or -1
  if not (number >= 0 and number < 9e18) then
    return value and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) and value
  end
  local ahead = ((tonumber(string.sub(value, 1, -11)) or 0) - start / 1000000) % 900000000
  local count = tonumber(string.sub(value, -10)) or 0
  if not (ahead < 450000000 and count >= 0) then return false end
  start = start + ahead * 1000000
  if start == stop and not after then return { misfit = true } end
  return { start, count }
end
f.step = function(s, op, cost, limit, cap, bounds)
  local start, stop, later = f.around(bounds)
  local count, far, after = s and s[2] or 0, false, nil
  limit, cap = limit + 0, cap + 0
  if s and s[1] > stop then
    count, far = math.min(math.max(count, limit), cap), true
    after = { start, count }
  elseif s then
    count = math.min(count, cap)
    if s[1] >= stop then stop = later end
    start = s[1]
  end
  if op == 103 then
    if s and count > 0 then after = { start, math.max(count - cost, 0) } end
    return after, true, 0, 0, 0, 0, far
  end
  local passes = count + cost <= limit
  local charged = 0
  if op ~= 112 and (passes or op == 100) then
    charged = math.min(count + cost, cap) - count
    if charged > 0 then after = { start, count + charged } end
  end
  return after, passes, not passes and cost <= limit and stop - now or 0, charged, start, 0, far
end
f.tell = function(s, limit, cap, bounds)
  local _, stop, later = f.around(bounds)
  if s and s[1] == stop then stop = later end
  return math.max(limit - math.min(s and s[2] or 0, cap), 0), stop - now
end
f.save = function(key, s, _, _, bounds)
  local _, stop, later = f.around(bounds)
  local left = (s[1] == stop and later or stop) - now + 1999
  local text = string.format('%d%010d', s[1] / 1000000 % 900000000, s[2])
  redis.call('SET', key, text, 'PX', string.format('%d', (left - left % 1000) / 1000 + keep))
end
-- end functions
