#!lua
-- Finds an algorithm by its letter, the same as in the counter's key:
-- algorithms(letter, now, extra_ms, only_refund) -> functions.
--
-- Each algorithm has these functions, in its own file. The limit is what that file
-- lists, from limit[at + 1] on.
--   load(key, limit, at) -> state (nil: none), err
--   step(state, op, cost, limit, at) -> passes, wait, charged, since, entry, write, clamped
--     op       take, peek, refund, or debt (a take that is charged whatever its verdict)
--     wait     microseconds until it would pass; 0: it passes, or never does
--     charged  hits; since: the window or the time they were charged in; entry: of a log
--     write    the new state; nil: no change
--     clamped  the stored state was from the far future
--   report(state, limit, at) -> available (hits), reset (microseconds until nothing is used)
--   save(key, state, limit, at)
--   refund(key, limit, at, hits, taken_at, window, entry) -> whether the counter changed, err
-- A state is never changed, only replaced. The limit is a part of a longer list because a list of its own
-- costs Redis half a microsecond.
--
-- Only the algorithms that a call uses are built: to build one costs Redis about 1 us. `only_refund`: the
-- caller needs nothing else, and the commoner algorithms leave out what refund does not use.
local letter, now, extra_ms, only_refund = ...
if letter == 'w' or letter == 'k' then
  return loadfile('algorithm/fixed_window.lua')(now, extra_ms, only_refund)
elseif letter == 'b' or letter == 'l' then
  return loadfile('algorithm/bucket.lua')(now, extra_ms, only_refund)
elseif letter == 's' then
  return loadfile('algorithm/sliding_window.lua')(now, extra_ms, only_refund)
elseif letter == 'g' then
  return loadfile('algorithm/sliding_log.lua')(now, extra_ms)
elseif letter == 'c' then
  return loadfile('algorithm/concurrency.lua')(now, extra_ms)
elseif letter == 'h' then
  return loadfile('algorithm/hybrid.lua')(now, extra_ms)
end
error('no algorithm has this letter')
