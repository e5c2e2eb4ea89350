#!lua
-- Refunds charges, each identified by its receipt. A window gets the hits back if its counter still has the
-- window that was charged. A bucket gets back the hits minus those that may have refilled since the charge.
-- Refunds are sent at most once: a lost one only makes a counter too strict for a while.
--
-- KEYS[i]  the counter of receipt i; receipts may share a counter. After the counters come the two keys of the
--          holds of each receipt for a hold
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  stride: number of values per receipt
-- ARGV[3]  receipts: MessagePack, for each receipt these values, then nils up to the stride:
--   +1  letter: of the algorithm, as in the counter's key; for a hold, r and that letter
--   +2  hits: charged; for a renewed lease or hold, those that it had before
--   +3  taken_at: time of the charge; for a hold, its end
--   +4  window: start of the window charged; for a renewed lease or hold, its former end
--   +5  entry: number of a log's take, holder of slots, id of a hold, or credits taken from a hybrid's pool
--   +6  limit: the values listed in the algorithm's file
--
-- State    as in each algorithm's file
-- Reply    number of counters changed
-- Cost     TIME once; one GET and at most one write per receipt (logs and slots: a few more)
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local stride, args = ARGV[2] + 0, { cmsgpack.unpack(ARGV[3]) }
-- Many values come as one array, because they would not fit on Lua's stack.
args = args[2] and args or args[1]
local changed, letter, algorithm = 0, nil, nil
for i = 1, #KEYS do
  if not args[(i - 1) * stride + 1] then
    break
  end
  local at = (i - 1) * stride
  if args[at + 1] ~= letter then
    letter = args[at + 1]
    algorithm = loadfile('algorithms.lua')(letter, now, extra_ms, true, KEYS)
  end
  local hits, taken_at, window, entry = args[at + 2], args[at + 3], args[at + 4], args[at + 5]
  local done, err = algorithm.refund(KEYS[i], args, at + 5, hits, taken_at, window, entry)
  if err then
    return err
  elseif done then
    changed = changed + 1
  end
end
return changed
