#!lua
-- Decides a call of several checks of different counters that all take and are charged when
-- admitted: what most calls are. All of them are required, or the accounting is independent.
-- Everything is read and decided before the first write.
--
-- KEYS[i]  the counter of check i: those of fixed windows first, then buckets in arrival form, then
--          buckets in credit form; none twice
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- ARGV[2]  accounting: 'a' all or nothing, 'i' independent
-- ARGV[3]  windows: how many of the checks are of fixed windows
-- ARGV[4]  arrivals: how many are of buckets in arrival form
-- then of each check, the last only of windows and in credit form:
--   fixed window                  bucket
--   +1  cost: hits                +1  need: credits to take; capacity + 1 where they never fit
--   +2  limit: hits per window    +2  capacity: credits of a full bucket
--   +3  length_us                 +3  rate: credits per microsecond
--
-- State    each counter's, as its algorithm's file says
-- Reply    as apply.lua's
-- Cost     TIME once, per counter one GET and one write; refused: no write

local now, keep = tonumber(ARGV[1]), 86400000
if not now then
  local time = redis.call('TIME')
  now, keep = time[1] * 1000000 + time[2], 0
end
local all_or_nothing, windows, arrivals = ARGV[2] == 'a', ARGV[3] + 0, ARGV[3] + ARGV[4]
local checks = #KEYS
local reply, more, clamped, refused = { now, 0, 0, 0 }, false, 0, false

local at, r = 4, 2
for i = 1, checks do
  local key = KEYS[i]
  if i <= windows then
    local limit, length = ARGV[at + 2] + 0, ARGV[at + 3] + 0
    local cap = limit
    -- insert fixed_window.read
    -- insert fixed_window.fit
    if far then
      clamped = clamped + 1
      -- insert fixed_window.write
    elseif window * length > now then
      more = more or {}
      more[#more + 1] = i
    end
    -- The limit is spent: in its place, the window's number; negative where the key holds none.
    ARGV[at + 2] = held and window or -window
    -- Counted as if admitted: most calls are, and numbers of arguments are dear.
    local after = count + ARGV[at + 1]
    if after <= limit then
      reply[r] = after
    else
      reply[r], refused = -1 - count, true
    end
    at, r = at + 3, r + 1
  else
    local need, capacity, rate = ARGV[at + 1] + 0, ARGV[at + 2] + 0, i > arrivals and ARGV[at + 3] + 0
    local cap = capacity
    -- insert bucket.read
    -- insert bucket.fit
    if far then
      clamped = clamped + 1
      -- insert bucket.write
    end
    local passes
    -- insert bucket.check
    if passes then
      reply[r] = ahead
    else
      reply[r], refused = -1 - ahead, true
    end
    at, r = at + 2, r + 1
    if rate then
      reply[r] = rest
      at, r = at + 1, r + 1
    end
  end
end

if not (refused and all_or_nothing) then
  at, r = 4, 2
  for i = 1, checks do
    local key, passes = KEYS[i], reply[r] >= 0
    if i <= windows then
      if passes and (ARGV[at + 2] < 0 or not tonumber(redis.pcall('INCRBY', key, ARGV[at + 1]))) then
        local count, window, length = reply[r], math.abs(ARGV[at + 2]), ARGV[at + 3] + 0
        -- insert fixed_window.write
      end
      at, r = at + 3, r + 1
    else
      local rate = i > arrivals and ARGV[at + 3] + 0
      if passes then
        local ahead, rest, need = reply[r], rate and reply[r + 1] or 0, ARGV[at + 1] + 0
        -- insert bucket.charge
        reply[r] = ahead
        if rate then
          reply[r + 1] = rest
        end
        -- insert bucket.write
      end
      at, r = at + (rate and 3 or 2), r + (rate and 2 or 1)
    end
  end
end

if refused and all_or_nothing then
  for i = 1, windows do
    if reply[1 + i] >= 0 then
      reply[1 + i] = reply[1 + i] - ARGV[2 + 3 * i]
    end
  end
end
for n = 1, more and #more or 0 do
  reply[r], reply[r + 1], reply[r + 2], r = more[n], 1, 0, r + 3
end
if clamped > 0 then
  reply[r], reply[r + 1], reply[r + 2], r = 0, clamped, 0, r + 3
end
reply[r] = nil
return reply
