#!lua
-- Decides several calls, one after another, and writes each counter once: what the calls leave is what they
-- would leave if each had been sent by itself. Answers the counters' states before the calls, from which
-- src/algorithm computes the outcomes.
-- Takes and peeks of fixed windows, sliding windows, and buckets; the counters of one call are all different.
--
-- KEYS[i]  the counters, each once, in the order in which the calls first use them
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  numbers: a MessagePack array
--   +1  last: index of the last value of the limits
--   +2  size: number of all values
-- then for each limit:
--   +1  letter: of the algorithm, as in the counter's key
--   +2  limit: the values listed in the algorithm's file
-- then for each call:
--   +1  checks: their number, if all of them are required takes of an all-or-nothing call; else 0 and
--   +2  accounting: all_or_nothing or independent
--   +3  checks: their number
-- then for each check, the last two only after the accounting:
--   +1  place: of the counter in KEYS
--   +2  at: index of the limit's letter; counters that are the same have limits of the same window
--   +3  cost: hits
--   +4  op: take or peek
--   +5  role: required, shadow, or the number of the quota group
--
-- State    as in each algorithm's file
-- Reply    a MessagePack array: now; then for each call the state of each counter that it is the first to use,
--          and the number of checks that passed. After the calls, if writes failed: the code of the first
--          error, and the places of the counters that were not written.
--          A state is 0 if the counter is missing, or else
--            fixed window    count, if it is the current window; else -1 - count, start
--            sliding window  -1 - count, start, previous count
--            bucket          ahead; or -1 - ahead, rem
--          It is false, and the number of checks that passed is -1, if the server's clock is outside a
--          calendar's windows; then the call charges nothing, and the next one to use the counter answers
--          its state again.
-- Cost     TIME and MGET once, one write per counter that changes
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local call, pcall_redis, format, sub = redis.call, redis.pcall, string.format, string.sub
local n, values = cmsgpack.unpack(ARGV[2]), call('MGET', unpack(KEYS))
-- For each counter: `held` is its state. In the plain form it is a number: the hits of the current window, or
-- the debt of a bucket in credits. If `listed`, it is the state that the algorithm's file describes, false if
-- missing. `first` is the state before all calls, `limits` the limit that read it.
local held, listed, first, limits = {}, {}, {}, {}
local reply, r, algorithms, digits_of = { now }, 2, {}, {}

local function algorithm_of(letter)
  local algorithm = algorithms[letter]
  if not algorithm then
    if letter == 'w' or letter == 'k' then
      algorithm = loadfile('algorithm/fixed_window.lua')(now, extra_ms)
    elseif letter == 's' then
      algorithm = loadfile('algorithm/sliding_window.lua')(now, extra_ms)
    else
      algorithm = loadfile('algorithm/bucket.lua')(now, extra_ms)
    end
    algorithms[letter] = algorithm
  end
  return algorithm
end

-- Appends a state to the reply.
local function answer(letter, state)
  local rest = nil
  if not state then
    reply[r] = 0
  elseif letter == 's' then
    reply[r], rest = -1 - math.min(state.cur, 4294967295), math.min(state.start, 9007199254740992)
    r = r + 1
    reply[r], r, rest = rest, r + 1, math.min(state.prev, 4294967295)
    reply[r] = rest
  elseif state.start then
    reply[r], reply[r + 1] = -1 - state.count, state.start
    r = r + 1
  elseif state.tat >= now then
    reply[r] = -1 - math.min(math.ceil(state.tat - now), 9007199254740992)
    reply[r + 1] = math.min(state.rem, 4294967295)
    r = r + 1
  else
    reply[r] = 0
  end
  r = r + 1
end

-- Decides a check by the algorithm's file. Returns whether it passes, nil if the clock is outside the
-- calendar's windows, and the state to return to if the call is rejected.
local function step(place, at, op, cost)
  local letter, state = n[at], held[place]
  local algorithm = algorithm_of(letter)
  if not listed[place] and state then
    -- The debt of a bucket in credits.
    local rate = n[limits[place] + 4]
    local rem = state % rate
    local before = state == first[place]
    state = { tat = now + (state - rem) / rate, rem = rem }
    first[place] = before and state or nil
  elseif state == nil or letter == 'k' then
    local parsed, err = algorithm.parse(values[place], n, at)
    if state == nil then
      if err then
        reply[r], r = false, r + 1
        return nil, nil
      end
      answer(letter, parsed)
      state = parsed or false
      first[place], limits[place] = state, at
    elseif err then
      return nil, state
    end
  end
  listed[place] = true
  local passes, _, _, _, _, write, far = algorithm.step(state or nil, op, cost, n, at)
  held[place] = write or state
  if far and op == 'take' and passes then
    _, _, _, _, _, state = algorithm.step(state, 'peek', 1, n, at)
  elseif far then
    state = write
  end
  return passes, state
end

-- Reads a counter in the plain form. If its value has another form, leaves that to `step`.
local function read(place, at, letter)
  local value, state = values[place], 0
  if letter == 'w' then
    local length = n[at + 2]
    local digits = digits_of[length]
    if not digits then
      digits = format('%d', (now - now % length) / length % 900000000)
      digits_of[length] = digits
    end
    if value then
      state = sub(value, 1, -11) == digits and tonumber(sub(value, -10))
      state = state and state >= 0 and state % 1 == 0 and state
    end
    reply[r] = state
  elseif letter == 'b' or letter == 'l' then
    local rate, rem, tat = n[at + 4], 0, nil
    if value then
      tat = tonumber(value)
      if not tat then
        local whole, part = string.match(value, '^(%d+):(%d+)$')
        tat, rem = tonumber(whole), tonumber(part) or 0
      end
      if tat and tat >= now then
        local ahead = tat - now
        state = ahead * rate + rem
        state = ahead % 1 == 0 and rem < rate and state <= n[at + 2] and state
        reply[r] = ahead
        if state and rem > 0 then
          reply[r], reply[r + 1] = -1 - ahead, rem
          r = r + 1
        end
      else
        reply[r] = 0
      end
    else
      reply[r] = 0
    end
  else
    return nil
  end
  if state then
    held[place], first[place], limits[place], r = state, state, at, r + 1
  end
  return state
end

-- Decides a check. Returns whether it passes, and the state to return to if the call is rejected.
local function decide(place, at, op, cost)
  local letter, state = n[at], held[place]
  if state == nil then
    state = read(place, at, letter)
  end
  if not state or listed[place] then
    return step(place, at, op, cost)
  elseif letter == 'w' then
    local after = state + cost
    if after > n[at + 1] then
      return false, state
    elseif op == 'take' then
      held[place] = after
    end
    return true, state
  end
  local spare, unit, floor = n[at + 1] - cost, n[at + 3], n[at + 5]
  if state > n[at + 2] or n[at + 4] ~= n[limits[place] + 4] then
    return step(place, at, op, cost)
  end
  spare = floor > 1 and spare - floor + 1 or spare
  if spare < 0 or state > spare * unit then
    return false, state
  elseif op == 'take' then
    held[place] = state + cost * unit
  end
  return true, state
end

local i, size, before = n[1] + 1, n[2], {}
while i <= size do
  local checks, accounting, width, start = n[i], 'all_or_nothing', 3, i + 1
  if checks == 0 then
    accounting, checks, width, start = n[i + 1], n[i + 2], 5, i + 3
  end
  local passed, refused, quotas, outside = 0, false, nil, false
  i = start
  for c = 1, checks do
    local op, role = 'take', 'required'
    if width == 5 then
      op, role = n[i + 3], n[i + 4]
    end
    local passes, state = decide(n[i], n[i + 1], op, n[i + 2])
    before[c] = state
    if passes then
      passed = passed + 1
    elseif passes == nil then
      outside = true
    end
    if role == 'required' then
      refused = refused or not passes
    elseif role ~= 'shadow' then
      -- Whether all checks of the quota group pass.
      quotas = quotas or {}
      quotas[role] = quotas[role] ~= false and passes or false
    end
    i = i + width
  end
  local quota_passes = not quotas
  if quotas then
    for _, passes in pairs(quotas) do
      quota_passes = quota_passes or passes
    end
  end
  if outside or accounting == 'all_or_nothing' and (refused or not quota_passes) then
    for c = 1, checks do
      held[n[start + width * (c - 1)]] = before[c]
    end
  end
  reply[r], r = outside and -1 or passed, r + 1
end

local failed = nil
for place = 1, #KEYS do
  local key, state, at = KEYS[place], held[place], limits[place]
  if state ~= first[place] then
    local letter, done, text, left = n[at], nil, nil, nil
    if listed[place] then
      local saved, err = pcall(algorithm_of(letter).save, key, state, n, at)
      done = saved or type(err) == 'table' and err or { err = err }
    elseif letter == 'w' then
      local length, more = n[at + 2], state - first[place]
      local number = (now - now % length) / length
      if values[place] then
        done = more == 1 and pcall_redis('INCR', key) or pcall_redis('INCRBY', key, format('%d', more))
      end
      if done ~= number % 900000000 * 10000000000 + state then
        text, left = format('%d%010d', number % 900000000, state), (number + 1) * length - now + 1999
      end
    else
      local rate = n[at + 4]
      local rem = state % rate
      local ahead = (state - rem) / rate
      text, left = format(rem > 0 and '%d:%d' or '%d', now + ahead, rem), ahead + 1999
    end
    if text then
      done = pcall_redis('SET', key, text, 'PX', format('%d', (left - left % 1000) / 1000 + extra_ms))
    end
    if type(done) == 'table' and done.err then
      if not failed then
        failed, reply[r], r = true, string.match(done.err, '%u%u+') or 'ERR', r + 1
      end
      reply[r], r = place, r + 1
    end
  end
end
return cmsgpack.pack(reply)
