#!lua
-- Refunds charges by their receipts, each to the counter it was taken from: into its own window if the
-- counter still holds that one; into a bucket less what can have refilled since. Sent once; a refund that
-- is lost only makes a counter stricter for a while.
--
-- KEYS[i]  the counter of receipt i; the same counter may come twice
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  stride: how many arguments each receipt has
-- ARGV[3]  receipts: MessagePack, one after the other, of each receipt (then nil, up to the stride):
--   +1  letter: the algorithm's, as in the counter's key
--   +2  hits
--   +3  taken_at: when they were taken
--   +4  window: its start
--   +5  entry: of a log its number, of slots their holder
--   +6  limit: what the algorithm's file lists, one after the other
--
-- State    each counter's, as its algorithm's file says
-- Reply    how many counters were changed
-- Cost     TIME once; one GET and at most one write per receipt (logs and slots: a few more)
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local stride, args = ARGV[2] + 0, { cmsgpack.unpack(ARGV[3]) }
local changed, letter, algorithm = 0, nil, nil
for i = 1, #KEYS do
  local at = (i - 1) * stride
  if args[at + 1] ~= letter then
    letter = args[at + 1]
    algorithm = loadfile('algorithms.lua')(letter, now, extra_ms, true)
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
