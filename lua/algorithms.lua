#!lua
-- Returns the functions of an algorithm by its letter in the counter's key:
-- algorithms(letter, now, extra_ms, only_refund, keys) -> functions.
--
-- Each algorithm's file defines these functions, and lists the values of the limit, from limit[at + 1]
-- on.
--   load(key, limit, at, holders) -> state (nil if missing), err
--     holders  those of all checks of the counter; only for concurrency
--   step(state, op, cost, limit, at, held) -> passes, wait, charged, since, entry, write, clamped
--     op       take, peek, refund, or debt (a take that is charged even if refused); only for budgets also
--              hold, settle, and reset
--     held     hits that are held besides; only for windows and buckets, nil for none
--     wait     microseconds until the check would pass; 0 if it passes now or never does
--     charged  hits; since: start of the window, or time, of the charge; entry: number in a log, or
--              credits of a hybrid's pool. Of a renewed lease, since is its former end, and entry the
--              former hits. Of a hold, charged is its hits, since the former hold's end, entry its hits
--     write    the new state; nil if it does not change
--     clamped  whether the stored state was from the far future
--   report(state, limit, at) -> available (hits), reset (microseconds until the counter is unused), only for
--     budgets held (hits)
--   save(key, state, limit, at)
--   refund(key, limit, at, hits, taken_at, window, entry) -> whether the counter changed, err
-- A step does not change its state, but makes a new one. Only logs, slots, and holds, whose copies would make a
-- call quadratic, are changed in place by all steps but the first take: its new state is the admitted one
-- (decide_call.lua), and later takes pass that. The limit is part of a longer list, because a list of
-- its own would cost Redis half a microsecond.
--
-- Building an algorithm's functions costs Redis about 1 us, so only those that a call uses are built. With
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
