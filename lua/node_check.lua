#!lua
-- Decides on one node of a cluster what multi_check.lua decides in one slot: several checks, all of
-- different fixed windows and buckets, in any slots of the node. Called without KEYS, which may not be in
-- several slots.
--
-- KEYS[i]  none
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  numbers: as of multi_check.lua
-- ARGV[3]  keys: from here on, the counter of each check, in the order of multi_check.lua
--
-- State    as in each algorithm's file
-- Reply    as of multi_check.lua; 'not here' if the node does not hold every key: then nothing was charged
-- Cost     TIME once, one GET per counter, from Redis 7.4 on one more, one write per counter; refused: no write
local keys, numbers = { unpack(ARGV, 3) }, loadfile('numbers.lua')(ARGV[2])
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local values, elsewhere = loadfile('node_read.lua')('GET', keys)
if elsewhere then
  return 'not here'
end
return loadfile('decide_windows_and_buckets.lua')(keys, values, numbers, now, extra_ms)
