#!lua
-- Fixed window: so many hits in each window; windows are aligned to the Unix epoch.
-- Decides a call of one check that takes and is charged when admitted. The scripts for every other
-- call, takes.lua and apply.lua, are made of the blocks between `begin` and `end`.
--
-- KEYS[1]  the counter
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- ARGV[2]  cost: hits to take, at most one more than the limit
-- ARGV[3]  limit: hits per window
-- ARGV[4]  length_us: length of a window, microseconds, at least one second
--
-- State    one integer: the window's number modulo 900,000,000, then the count in ten decimal
--          digits. So hits in one window are INCRBY, the cheapest write there is, and Redis stores
--          8 bytes. (Seconds come round after 28 years; expiry is what keeps such keys away, and
--          half of that is the distance at which past and future are told apart.)
-- Expiry   the window's end and at most 2 ms; hits do not move it.
-- Reply    "count now [start far]": hits used in the window after the call (refused: -1 - count)
--          and the time; after a step back of the clock also the window's beginning, and 1 where
--          the state was from the far future.
-- Cost     TIME, GET and one write (INCRBY; SET at a window's first hit); refused: no write.
--
-- Numbers are doubles, exact below 2^53: every number here is. Never tostring a timestamp.

-- begin clock: ARGV[1] -> now, keep (milliseconds that an expiry is longer in tests)
local now, keep
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now, keep = time[1] * 1000000 + time[2], 0
else
  now, keep = ARGV[1] + 0, 86400000
end
-- end clock
local key, cost, limit, length = KEYS[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0

-- begin read: key, now, length -> window (its number), count, held (the key holds that window),
-- far (it is from the far future).
-- begin present: now, length -> window (its number), digits (how the state begins)
local window = (now - now % length) / length
local digits = string.format('%d', window % 900000000)
-- end present
-- begin get: key -> value (false: none). pcall, because a key of a wrong type counts as an absent one.
local value = redis.pcall('GET', key)
if value and value.err then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  value = false
end
-- end get
-- begin parse: value, window, digits -> window, count, held, far. A number beyond any of ours counts
-- as absent, or its window would seem to be the present one for ever.
local count, held, far = 0, false, false
if value then
  local begins, ahead = string.sub(value, 1, -11), 0
  if begins ~= digits then
    local number = tonumber(value) or -1
    ahead = number >= 0 and number < 9e18 and ((tonumber(begins) or 0) - window) % 900000000 or 450000000
  end
  if ahead < 450000000 then
    count = tonumber(string.sub(value, -10)) or 0
    if not (count >= 0) then
      count = 0
    elseif ahead <= 1 then
      window, held = window + ahead, true
    else
      far = true
    end
  end
end
-- end parse
-- end read

local cap = limit
-- begin fit: count, far, limit, cap (the highest count) -> count. A counter from the far future is
-- full now.
if far then
  count = math.min(math.max(count, limit), cap)
end
-- end fit

local passes = count + cost <= limit
if passes then
  count = count + cost
end
-- INCRBY fails on what is not written as whole numbers are. Its answer is rounded as this sum is.
if not (passes and held and redis.pcall('INCRBY', key, ARGV[2]) == window % 900000000 * 10000000000 + count)
  and (passes or far) then
  -- begin write: key, window, count, now, length, keep
  local left = (window + 1) * length - now + 1999
  redis.call('SET', key, string.format('%d%010d', window % 900000000, count), 'PX', string.format('%d', (left - left % 1000) / 1000 + keep))
  -- end write
end
if not passes then
  count = -1 - count
end
if far or window * length > now then
  return string.format('%d %d %d %d', count, now, window * length, far and 1 or 0)
end
return string.format('%d %d', count, now)
