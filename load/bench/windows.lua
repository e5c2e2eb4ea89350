-- What a call of several windows cannot do without: the time, a read and a write each, the reply.
-- Decides nothing.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = { now, 0 }
for i = 1, #KEYS do
  local held = redis.call('GET', KEYS[i])
  if held then
    reply[2 * i + 1] = redis.call('INCRBY', KEYS[i], ARGV[1])
  else
    reply[2 * i + 1] = 1
    redis.call('SET', KEYS[i], 1, 'PX', 3600000)
  end
  reply[2 * i + 2] = 0
end
return reply
