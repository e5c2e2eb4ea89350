-- What a fixed window cannot do without: the time, one read, one write, the reply. Decides nothing.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local held = redis.call('GET', KEYS[1])
local count
if held then
  count = redis.call('INCRBY', KEYS[1], ARGV[2])
else
  count = ARGV[2]
  redis.call('SET', KEYS[1], count, 'PX', 3600000)
end
return string.format('%d %d', count, now)
