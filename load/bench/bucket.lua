-- What a bucket cannot do without: the time, one read, one write, the reply. Decides nothing.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local held = tonumber(redis.call('GET', KEYS[1])) or now
local ahead = held - now + ARGV[2]
redis.call('SET', KEYS[1], string.format('%d', held + ARGV[2]), 'PX', 3600000)
return string.format('%d %d', ahead, now)
