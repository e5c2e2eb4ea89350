#!lua
-- Reads the clock: clock(now_us) -> now (microseconds since the epoch), extra_ms (added to every expiry).
--
-- now_us is a script's ARGV[1]. In production it is empty, and the time is that of the Redis server. A test
-- passes a number, and every key lives a day longer, because the two clocks differ.
local now_us = ...
if now_us == '' then
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2], 0
end
return now_us + 0, 86400000
