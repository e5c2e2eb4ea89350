#!lua
-- Formats an expiry: ttl(left_us, extra_ms) -> milliseconds as text, for PX and PEXPIRE.
--
-- Rounds up and adds 1 ms, because Redis counts from its own millisecond: a key must not end before its
-- state means nothing, and at most 2 ms after.
local left_us, extra_ms = ...
local up = (left_us > 0 and left_us or 0) + 1999
return string.format('%d', (up - up % 1000) / 1000 + extra_ms)
