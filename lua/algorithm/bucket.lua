#!lua
-- Bucket (token bucket, leaky bucket): `burst` hits fit in, and it refills evenly.
-- Decides a call of one check that takes and is charged when admitted. The scripts for every other
-- call, takes.lua, apply.lua and give_back.lua, are made of the blocks between `begin` and `end`.
--
-- The debt of a bucket is counted in credits: `ahead` microseconds until it is full, each worth
-- `rate` credits, and `rest` credits below that. In arrival form (a hit every so many whole
-- microseconds) rate is 1 and a credit is a microsecond; in credit form a hit is worth as many
-- credits as its window has microseconds, and rate is the hits per window: exact for any rate.
--
-- KEYS[1]  the counter
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- ARGV[2]  need: credits to take; one more than the capacity where the hits never fit
-- ARGV[3]  capacity: credits of a full bucket, less what a floor keeps from being looked at
-- ARGV[4]  rate: credits per microsecond; absent, or empty, in arrival form
-- ARGV[5]  cap: the largest debt in credits, where it is not the capacity
--
-- State    one integer, the time in microseconds at which the bucket is full ("theoretical arrival
--          time"), in credit form followed by a colon and rest where that is not 0.
-- Expiry   the time until the bucket is full and at most 2 ms: then an absent one means the same.
-- Reply    "ahead now [rest far]": the debt after the call (refused: -1 - ahead) and the time; in
--          credit form also rest, and 1 where the state was from the far future.
-- Cost     TIME, GET and SET; refused: no write.
--
-- Numbers are doubles, exact below 2^53: every sum that decides is. Never tostring a timestamp.

-- insert fixed_window.clock
local key, need, capacity = KEYS[1], ARGV[2] + 0, ARGV[3] + 0
local rate = ARGV[4] and tonumber(ARGV[4])

-- begin read: key, now -> ahead, rest
-- insert fixed_window.get
-- begin parse: value, now -> ahead, rest
local ahead, rest = 0, 0
local arrival = tonumber(value)
if not arrival and value then
  local whole, part = string.match(value, '^(%d+):(%d+)$')
  arrival, rest = tonumber(whole), tonumber(part) or 0
end
if arrival and arrival >= now then
  ahead = arrival - now
else
  rest = 0
end
-- end parse
-- end read

local cap = ARGV[5] and ARGV[5] + 0 or capacity
-- begin fit: ahead, rest, cap (the largest debt), rate -> ahead, rest, far. Against the limit as it
-- is now: a rest of another rate is rounded up; a debt of more than a second beyond the largest means
-- that the clock jumped back or the limit was lowered, and is the largest from now on.
local far = false
if rest > 0 and (not rate or rest >= rate) then
  ahead, rest = ahead + 1, 0
end
if (ahead - 1000000) * (rate or 1) > cap then
  rest = cap % (rate or 1)
  ahead, far = (cap - rest) / (rate or 1), true
end
-- end fit

local passes
-- begin check: ahead, rest, need, capacity, rate -> passes. Exact: a product beyond 2^53 is rounded,
-- but never below the capacity.
passes = ahead * (rate or 1) + rest <= capacity - need
-- end check
if passes then
  -- begin charge: ahead, rest, need, rate -> ahead, rest
  if rate then
    local part = (rest + need) % rate
    ahead, rest = ahead + (rest + need - part) / rate, part
  else
    ahead = ahead + need
  end
  -- end charge
end

if passes or far then
  -- begin write: key, ahead, rest, now, keep
  local left = ahead + 1999
  local state = string.format(rest > 0 and '%d:%d' or '%d', now + ahead, rest)
  redis.call('SET', key, state, 'PX', string.format('%d', (left - left % 1000) / 1000 + keep))
  -- end write
end
if not passes then
  ahead = -1 - ahead
end
if far then
  return string.format('%d %d %d 1', ahead, now, rest)
elseif rate then
  return string.format('%d %d %d', ahead, now, rest)
end
return string.format('%d %d', ahead, now)
