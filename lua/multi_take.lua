#!lua
-- Decides a call of several checks of different counters that all take and are charged when
-- admitted: what most calls are. All of them are required, or the accounting is independent.
-- Everything is read and decided before the first write.
--
-- KEYS[i]  the counter of check i: those of fixed windows first, then buckets in arrival form, then
--          buckets in credit form; none twice
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- ARGV[2]  numbers: MessagePack, one after the other, because to read each from an argument of its
--          own costs Redis a fifth of the call. First
--   +1  all_or_nothing: 1, or 0 for independent accounting
--   +2  windows: how many of the checks are of fixed windows
--   +3  arrivals: how many are of buckets in arrival form
-- then of each check, the last only of windows and in credit form:
--   fixed window                  bucket
--   +1  cost: hits                +1  need: credits to take; capacity + 1 where they never fit
--   +2  limit: hits per window    +2  capacity: credits of a full bucket
--   +3  length_us                 +3  rate: credits per microsecond
--
-- State    each counter's, as its algorithm's file says
-- Reply    as apply.lua's
-- Cost     TIME and MGET once, per counter one write; refused: no write

-- insert fixed_window.clock
local numbers, checks = { cmsgpack.unpack(ARGV[2]) }, #KEYS
local all_or_nothing, windows, arrivals = numbers[1] == 1, numbers[2], numbers[2] + numbers[3]
local reply, more, clamped, refused = { now, 0, 0, 0 }, false, 0, false
-- A key of a wrong type is absent in the answer of MGET.
local values = redis.call('MGET', unpack(KEYS))

local at, r = 3, 2
local last, present, begins
for i = 1, checks do
  local key, value = KEYS[i], values[i]
  if i <= windows then
    local limit, length = numbers[at + 2], numbers[at + 3]
    local cap = limit
    if length ~= last then
      -- insert fixed_window.present
      last, present, begins = length, window, digits
    end
    local window, digits = present, begins
    -- insert fixed_window.parse
    -- insert fixed_window.fit
    if far then
      clamped = clamped + 1
      -- insert fixed_window.write
    elseif window * length > now then
      more = more or {}
      more[#more + 1] = i
    end
    -- The limit is spent: in its place, the window's number; less than 0 where the key holds none.
    numbers[at + 2] = held and window or -1 - window
    -- Counted as if admitted: most calls are.
    local after = count + numbers[at + 1]
    if after <= limit then
      reply[r] = after
    else
      reply[r], refused = -1 - count, true
    end
    at, r = at + 3, r + 1
  else
    local need, capacity, rate = numbers[at + 1], numbers[at + 2], i > arrivals and numbers[at + 3]
    local cap = capacity
    -- insert bucket.parse
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
  at, r = 3, 2
  for i = 1, checks do
    local key, passes = KEYS[i], reply[r] >= 0
    if i <= windows then
      if passes then
        local count, window, length = reply[r], numbers[at + 2], numbers[at + 3]
        local cost, now_is = numbers[at + 1], false
        if window < 0 then
          window = -1 - window
        elseif cost == 1 then
          -- Because to write a number as an argument is dear.
          now_is = redis.pcall('INCR', key)
        else
          now_is = redis.pcall('INCRBY', key, string.format('%d', cost))
        end
        if now_is ~= window % 900000000 * 10000000000 + count then
          -- insert fixed_window.write
        end
      end
      at, r = at + 3, r + 1
    else
      local rate = i > arrivals and numbers[at + 3]
      if passes then
        local ahead, rest, need = reply[r], rate and reply[r + 1] or 0, numbers[at + 1]
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
      reply[1 + i] = reply[1 + i] - numbers[1 + 3 * i]
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
