#!lua
-- Decides on one node of a cluster what apply.lua decides in one slot: any checks, in any slots of the
-- node. Called without KEYS, which may not be in several slots.
--
-- KEYS[i]  none
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  accounting: as of apply.lua
-- ARGV[3]  stride: as of apply.lua
-- ARGV[4]  checks: as of apply.lua
-- ARGV[5]  keys: from here on, the counter of each check
--
-- State    as in each algorithm's file
-- Reply    as of apply.lua; 'not here' if the node does not hold every key: then nothing was written
-- Cost     that of apply.lua, and one STRLEN per counter, from Redis 7.4 on one more
local keys = { unpack(ARGV, 5) }
local _, elsewhere = loadfile('node_read.lua')('STRLEN', keys)
if elsewhere then
  return 'not here'
end
return loadfile('decide_any.lua')(keys, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
