#!lua
-- Gives charges back by their receipts, each to the counter it was taken from: into its own window
-- if the counter still holds that one; into a bucket less what can have refilled since. Sent once;
-- what is lost only makes a counter stricter for a while.
--
-- KEYS[i]  the counter of receipt i; the same counter may come twice
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- then of each receipt:
--   +1  form: w fixed window, c bucket (in arrival form the rate is 1)
--   form w                              form c (bucket.lua says what credits are)
--   +2  count: hits to give back        +2  need: credits to give back
--   +3  start: its window's beginning   +3  at: when they were taken, microseconds since the epoch
--   +4  length_us                       +4  cap: the largest debt in credits
--   +5  not used                        +5  rate: credits per microsecond
--
-- State    each counter's, as its algorithm's file says
-- Reply    how many counters were lowered
-- Cost     TIME once; one GET and at most one write per receipt

local now, keep = tonumber(ARGV[1]), 86400000
if not now then
  local time = redis.call('TIME')
  now, keep = time[1] * 1000000 + time[2], 0
end
local lowered = 0

for i = 1, #KEYS do
  local key, at = KEYS[i], 1 + (i - 1) * 5
  local need, since, cap = ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0
  if ARGV[at + 1] == 'w' then
    local length = cap
    local value = redis.pcall('GET', key)
    local window, count = since / length % 900000000, 0
    if tonumber(value) and (tonumber(string.sub(value, 1, -11)) or 0) == window then
      count = tonumber(string.sub(value, -10)) or 0
    end
    if count > 0 and tonumber(redis.pcall('INCRBY', key, count > need and -need or -count)) then
      lowered = lowered + 1
    end
  else
    local rate = ARGV[at + 5] + 0
    -- insert bucket.read
    -- insert bucket.fit
    local had, had_rest = ahead, rest
    local rest_back = need % rate
    local ahead_back = (need - rest_back) / rate - (now > since and now - since or 0)
    if ahead_back >= 0 then
      -- begin lower: ahead, rest, ahead_back, rest_back, rate -> ahead, rest
      rest = rest - rest_back
      if rest < 0 then
        rest, ahead_back = rest + rate, ahead_back + 1
      end
      ahead = ahead - ahead_back
      if ahead < 0 then
        ahead, rest = 0, 0
      end
      -- end lower
    end
    if far or ahead ~= had or rest ~= had_rest then
      -- insert bucket.write
      lowered = lowered + 1
    end
  end
end
return lowered
