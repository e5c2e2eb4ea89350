-- What a call of several windows cannot do without: the time, one read of all, a write each, the
-- reply. Decides nothing.
local time = redis.call('TIME')
local reply = { time[1] * 1000000 + time[2], 0 }
local values = redis.call('MGET', unpack(KEYS))
for i = 1, #KEYS do
  if values[i] then
    reply[1 + i] = redis.call('INCR', KEYS[i])
  else
    reply[1 + i] = 1
    redis.call('SET', KEYS[i], 1, 'PX', 3600000)
  end
end
return reply
