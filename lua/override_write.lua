#!lua
-- Writes records of run-time overrides: changes by operators, records of a replica that Redis lacks, and
-- records to forget. Not on the path of a request.
--
-- KEYS[1]  records
-- KEYS[2]  versions
-- ARGV[1]  first of four values for each record:
--   +1  id
--   +2  version
--   +3  time of the record. `now` for a change: it gets the server's time, and a version above +2 and above all
--       in Redis. Empty: forget the record if it still has this version
--   +4  content; empty for a tombstone
--
-- A record replaces the stored one only if its version is higher or, with the same version, its time is later or,
-- with the same time, its content is greater.
-- State    records: hash from id to `version time content`; its field '' holds `highest checksum`, the
--          highest version and the sum of all versions and times. versions: sorted set of ids by version
-- Reply    `version time` of a change, else an empty text
-- Cost     HMGET once; for each record one HMGET and, if it is written, ZADD and HSET; TIME once for a change
local MODULUS = 2 ^ 52
local records, versions = KEYS[1], KEYS[2]
local highest, checksum = string.match(redis.call('HMGET', records, '')[1] or '0 0', '^(%d+) (%d+)$')
highest, checksum = (highest or 0) + 0, (checksum or 0) + 0
local reply = ''
for i = 1, #ARGV, 4 do
  local id, version, time, content = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local held = redis.call('HMGET', records, id)[1]
  local held_version, held_time, held_content
  if held then
    held_version, held_time, held_content = string.match(held, '^(%d+) (%d+) (.*)$')
  end
  -- Any record replaces a value that is not a record.
  held_version, held_time = (held_version or 0) + 0, (held_time or 0) + 0
  local removed = (held_version + held_time) % MODULUS
  if time == '' then
    if held and held_version == version + 0 then
      checksum = (checksum - removed) % MODULUS
      -- HSET comes first. If it fails because memory is full, the checksum still matches the records.
      redis.call('HSET', records, '', string.format('%.0f %.0f', highest, checksum))
      redis.call('HDEL', records, id)
      redis.call('ZREM', versions, id)
    end
  else
    if time == 'now' then
      local now = redis.call('TIME')
      version, time = math.max(highest, version + 0) + 1, now[1] * 1000000 + now[2]
      reply = string.format('%.0f %.0f', version, time)
    else
      version, time = version + 0, time + 0
    end
    local wins = version > held_version
      or version == held_version and (time > held_time or time == held_time and content > (held_content or ''))
    if wins then
      highest = math.max(highest, version)
      checksum = (checksum - removed + (version + time) % MODULUS) % MODULUS
      local value = string.format('%.0f %.0f %s', version, time, content)
      redis.call('ZADD', versions, string.format('%.0f', version), id)
      redis.call('HSET', records, id, value, '', string.format('%.0f %.0f', highest, checksum))
    end
  end
end
return reply
