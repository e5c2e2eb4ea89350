#!lua
-- Returns the functions of one algorithm, selected by its letter in the counter's key:
-- algorithms(letter, now, extra_ms, only_refund, keys) -> functions.
--
-- Each algorithm's file defines the functions below. Its header lists the values of a limit. These begin at
-- limit[at + 1] of a longer list, because a list for each limit would cost Redis half a microsecond.
--   load(key, limit, at, holders) -> state (nil if the counter is missing), err
--     holders  holders of all checks of this counter; only concurrency uses them
--   step(state, op, cost, limit, at, held) -> passes, wait, charged, since, entry, write, clamped
--     op       take, peek, refund, or debt (a take that is charged even if refused). Budgets also have hold,
--              settle, and reset
--     held     hits that holds take up in addition to the state's hits, or nil; only windows and buckets use it
--     wait     microseconds until the check would pass; 0 if it passes now or never will
--     charged  hits charged or, for a hold, held
--     since    time of the charge, or start of the window charged; for a renewed lease or hold, its former end
--     entry    number of a log's take, or credits taken from a hybrid's pool; for a renewed lease or hold, its
--              former hits
--     write    the new state; nil if it does not change
--     clamped  true if the stored state was from the far future
--   report(state, limit, at) -> available (hits), reset (microseconds until the counter is unused), and for
--     budgets held (hits)
--   save(key, state, limit, at)
--   refund(key, limit, at, hits, taken_at, window, entry) -> whether the counter changed, err
-- step does not change its argument but returns a new state. Copies of logs, slots, and holds would make a call
-- quadratic, so only the first take of a call copies them. decide_call.lua keeps that copy as the admitted
-- state, and every other step changes them in place.
--
-- Building an algorithm's functions costs Redis about 1 us, so a call builds only those that it uses. With
-- `only_refund`, the common algorithms build only what refund needs.
local letter, now, extra_ms, only_refund, keys = ...
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
elseif letter == 'x' then
  return loadfile('algorithm/block.lua')(now, extra_ms)
elseif string.sub(letter, 1, 1) == 'r' then
  return loadfile('algorithm/budget.lua')(string.sub(letter, 2), now, extra_ms, only_refund, keys)
end
error('no algorithm has this letter')
