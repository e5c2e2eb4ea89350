#!lua
-- Formats an expiry: ttl(left_us, extra_ms) -> milliseconds as text, for PX and PEXPIRE.
--
-- Rounds up and adds 1 ms, because Redis counts from its cached millisecond: a key must not expire while
-- its state still matters, and expires at most 2 ms later.
local left_us, extra_ms = ...
local up = (left_us > 0 and left_us or 0) + 1999
return string.format('%d', (up - up % 1000) / 1000 + extra_ms)
