#!lua
-- Returns the changes of run-time overrides since a version, and counts the replicas. Each replica calls it
-- once a second.
--
-- KEYS[1]  records
-- KEYS[2]  versions
-- KEYS[3]  replicas
-- ARGV[1]  id of the replica
-- ARGV[2]  version: the changes after it are returned
-- ARGV[3]  maximum number of changes
-- ARGV[4]  microseconds without a call after which a replica is no longer counted
--
-- State    records and versions: see override_write.lua. They expire if no replica calls for eight days, a day
--          after replicas forget tombstones: no replica sends older ones. replicas: sorted set of the replicas by
--          the time of their last call
-- Reply    {time, `highest checksum`, number of replicas, ids, records}
-- Cost     TIME, ZADD, ZREMRANGEBYSCORE, ZCOUNT and HMGET once, PEXPIRE three times; with changes
--          ZRANGEBYSCORE and HMGET
local RECORDS_LIFE = 8 * 86400000
local time = redis.call('TIME')
local now, life = time[1] * 1000000 + time[2], ARGV[4] + 0
-- Out of memory is no reason to fail: Redis can still return the changes.
local beat = redis.pcall('ZADD', KEYS[3], string.format('%.0f', now), ARGV[1])
if type(beat) == 'table' and beat.err and not string.find(beat.err, 'OOM', 1, true) then
  return beat
end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now - life))
redis.call('PEXPIRE', KEYS[3], string.format('%.0f', life / 1000))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', RECORDS_LIFE))
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', RECORDS_LIFE))
local state = redis.call('HMGET', KEYS[1], '')[1] or '0 0'
local ids, records = {}, {}
if (string.match(state, '^%d+') or 0) + 0 > ARGV[2] + 0 then
  ids = redis.call('ZRANGEBYSCORE', KEYS[2], string.format('(%s', ARGV[2]), '+inf', 'LIMIT', 0, ARGV[3])
  if #ids > 0 then
    records = redis.call('HMGET', KEYS[1], unpack(ids))
  end
end
return { string.format('%.0f', now), state, redis.call('ZCOUNT', KEYS[3], '-inf', '+inf'), ids, records }
