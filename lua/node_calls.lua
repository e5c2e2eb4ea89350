#!lua
-- Decides several calls on one node of a cluster, one after another, each as node_check.lua decides it.
-- Saves the fixed cost of a script for every call but the first.
--
-- KEYS[i]  none
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  counts: one byte per call, its number of checks
-- ARGV[3]  numbers: from here on, those of each call, as of multi_check.lua
-- ARGV[4]  keys: after the numbers of the last call, the counters of all calls, in the order of the checks
--
-- State    as in each algorithm's file
-- Reply    the reply of multi_check.lua to each call; 'not here' if the node does not hold every key: then
--          nothing was written
-- Cost     TIME once; otherwise that of node_check.lua for each call, and one more GET per counter that an
--          earlier call has
local counts = { string.byte(ARGV[2], 1, -1) }
local keys, values = loadfile('node_read.lua')('GET', ARGV, 3 + #counts)
if not keys then
  return 'not here'
end
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local decide, replies, seen, first = loadfile('decide_windows_and_buckets.lua'), {}, {}, 0
for call = 1, #counts do
  local count = counts[call]
  local call_keys, call_values = { unpack(keys, first + 1, first + count) }, {}
  for i = 1, count do
    local key, value = call_keys[i], values[first + i]
    if seen[key] then
      -- An earlier call may have charged it.
      value = redis.pcall('GET', key)
      value = type(value) ~= 'table' and value
    end
    seen[key], call_values[i] = true, value
  end
  replies[call] = decide(call_keys, call_values, now, extra_ms, ARGV[2 + call])
  first = first + count
end
return replies
