#!lua
-- Reads the clock: clock(now_us) -> now (microseconds since the epoch), extra_ms (what to add to every
-- expiry).
--
-- now_us is a script's ARGV[1]. It is empty in production, where the server's clock counts, and a
-- number in tests, where every key lives a day longer.
local now_us = ...
if now_us == '' then
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2], 0
end
return now_us + 0, 86400000
