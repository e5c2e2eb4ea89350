#!lua
-- Sliding window: so many hits in about any interval of one window's length. The previous window's
-- hits count in the share of it that the sliding window still covers.
-- Decides a call of one check that takes and is charged when admitted. apply.lua, the script for
-- every other call, and give_back.lua are made of the blocks between `begin` and `end`.
--
-- KEYS[1]  the counter
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- ARGV[2]  cost: hits to take
-- ARGV[3]  limit: hits per window
-- ARGV[4]  length_us: length of a window, microseconds, at least one second
-- ARGV[5]  cap: the highest count of a window
-- ARGV[6]  tick_us: what time is counted in here; limit times ticks per window is below 2^53
--
-- State    three numbers with colons between: the present window's number, the hits of the one
--          before it and its own.
-- Expiry   the end of the next window (of this one, where its own hits are none) and at most 2 ms.
-- Reply    apply.lua's six numbers and the time, with blanks between
-- Cost     TIME, GET and SET; refused: no write.
--
-- Numbers are doubles, exact below 2^53: every product is. Never tostring a timestamp.

-- insert fixed_window.clock
local key, cost, limit, length = KEYS[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local cap, tick = ARGV[5] + 0, ARGV[6] + 0

-- begin load: key, length -> start (false: none), prev, cur
local start, prev, cur = false, 0, 0
-- insert fixed_window.get
if value then
  local a, b, c = string.match(value, '^(%d+):(%d+):(%d+)$')
  if a then start, prev, cur = a * length, b + 0, c + 0 end
end
-- end load

-- begin read: start, prev, cur, limit, length, cap, tick, now -> them, elapsed (in ticks), far
local begins = now - now % length
local from, far = begins, false
if start and start > now + length then
  -- From the far future: full now.
  start, prev, cur, far = begins, 0, math.min(math.max(cur, limit), cap), true
elseif start and start >= begins then
  -- Of the next window where the clock stepped back: it stands still.
  prev, cur, from = math.min(prev, cap), math.min(cur, cap), math.min(start, now)
elseif start and start + length == begins then
  start, prev, cur = begins, math.min(cur, cap), 0
else
  start, prev, cur = begins, 0, 0
end
local elapsed = (now - from - (now - from) % tick) / tick
local ticks = (length - length % tick) / tick
-- end read

local passes, wait
-- begin check: start, prev, cur, elapsed, cost, limit, ticks, tick, now -> passes, wait (0: none)
passes, wait = false, 0
if cost <= limit then
  local spare = limit - cost
  local room = spare - cur
  passes = room >= 0 and prev * (ticks - elapsed) <= room * ticks
  if not passes then
    if room >= 0 then
      room = room * ticks
      wait = ticks - math.min((room - room % prev) / prev, ticks)
    else
      room = spare * ticks
      wait = 2 * ticks - math.min((room - room % cur) / cur, ticks)
    end
    wait = math.max(start + wait * tick - now, 1)
  end
end
-- end check
if passes then
  cur = cur + cost
end

if passes or far then
  -- begin write: key, start, prev, cur, length, now, keep
  local left = math.max(start + (cur > 0 and 2 or 1) * length - now, 0) + 1999
  local state = string.format('%d:%d:%d', start / length, prev, cur)
  redis.call('SET', key, state, 'PX', string.format('%d', (left - left % 1000) / 1000 + keep))
  -- end write
end

-- begin tell: start, prev, cur, elapsed, limit, length, ticks, now -> available, reset
local carried = prev * (ticks - elapsed)
local available = limit - cur - (carried + (ticks - carried % ticks) % ticks) / ticks
available = available > 0 and available or 0
local reset = start + (cur > 0 and 2 or prev > 0 and 1 or 0) * length - now
reset = reset > 0 and reset or 0
-- end tell
local charged = passes and cost or 0
available = passes and available or -1 - available
return string.format('%d %d %d %d %d %d %d', available, wait, reset, charged, start, far and 1 or 0, now)
