#!lua
-- Gives charges back by their receipts, each to the counter it was taken from: into its own window
-- if the counter still holds that one; into a bucket less what can have refilled since. Sent once;
-- what is lost only makes a counter stricter for a while.
--
-- KEYS[i]  the counter of receipt i; the same counter may come twice
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- then of each receipt:
--   +1  form: w fixed window, k calendar window, s sliding window, c bucket (in arrival form the rate
--       is 1), l sliding log, n concurrency, h hybrid classes
--   forms w, k and s                    form c (bucket.lua says what credits are)
--   +2  count: hits to give back        +2  need: credits to give back
--   +3  start: its window's beginning   +3  at: when they were taken, microseconds since the epoch
--   +4  length_us                       +4  cap: the largest debt in credits
--   +5  not used                        +5  rate: credits per microsecond
--   form l: entry, at, length_us. Form n: holder. Form h: hits, at, terms (see hybrid.lua). What a
--   form does not use is empty
--
-- State    each counter's, as its algorithm's file says
-- Reply    how many counters were lowered
-- Cost     TIME once; one GET and at most one write per receipt

-- insert fixed_window.clock
local lowered = 0

for i = 1, #KEYS do
  local key, at = KEYS[i], 1 + (i - 1) * 5
  local need, since, cap = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local form = ARGV[at + 1]
  if form == 'w' or form == 'k' then
    -- A calendar window is named by its beginning in seconds.
    local length = form == 'w' and cap or 1000000
    local value = redis.pcall('GET', key)
    local window, count = since / length % 900000000, 0
    if tonumber(value) and (tonumber(string.sub(value, 1, -11)) or 0) == window then
      count = tonumber(string.sub(value, -10)) or 0
    end
    if count > 0 and tonumber(redis.pcall('INCRBY', key, count > need and -need or -count)) then
      lowered = lowered + 1
    end
  elseif form == 's' then
    local length = cap
    -- insert sliding_window.load
    local is_cur = start == since and cur > 0
    if is_cur or start == since + length and prev > 0 then
      if is_cur then cur = math.max(cur - need, 0) else prev = math.max(prev - need, 0) end
      -- insert sliding_window.write
      lowered = lowered + 1
    end
  elseif form == 'l' then
    local f, at, number, length = {}, since, need, cap
    -- insert sliding_log.entries
    -- insert sliding_log.give_back
  elseif form == 'n' then
    local f, holder = {}, ARGV[at + 2]
    -- insert concurrency.functions
    -- insert concurrency.give_back
  elseif form == 'h' then
    local f, terms, at = {}, ARGV[at + 4], since
    -- insert hybrid.functions
    -- insert hybrid.give_back
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
