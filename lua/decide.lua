#!lua
-- Decides several calls, one after another, and writes each counter once: what the calls leave is what they
-- would leave if each had been sent by itself. Answers the counters' states before the calls, from which
-- src/algorithm computes the outcomes.
-- Takes and peeks of fixed windows, sliding windows, and buckets; the counters of one call are all different.
--
-- KEYS[i]  the counters, each once; none on a cluster, where they may not be in several slots
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  numbers: MessagePack values in one argument. First
--   +1  base: index of the last value of the limits
--   +2  size: number of all values
-- then for each limit:
--   +1  letter: of the algorithm, as in the counter's key
--   +2  limit: the values listed in the algorithm's file
-- then for each counter:
--   +1  at: index of its limit's letter. Other limits of the counter have the same windows.
-- then for each call whose checks all are required takes, under the counters' limits, all or nothing:
--   +1  checks: their number
--   then for each check:
--   +1  place: of the counter in KEYS
--   +2  cost: hits
-- or for each other call:
--   +1  0
--   +2  accounting: all_or_nothing or independent
--   +3  checks: their number
--   then for each check:
--   +1  place, +2  cost: as above
--   +3  at: index of the limit's letter
--   +4  op: take or peek
--   +5  role: required, shadow, or the number of the quota group
--
-- ARGV[3]  keys: on a cluster, from here on, the counters
--
-- State    as in each algorithm's file
-- Reply    a MessagePack array: now; for each counter its state; for each call the number of checks that
--          passed, or -1 if the server's clock is outside a calendar's windows: then it charged nothing.
--          A state is the hits of the current fixed window, or the debt of a bucket in credits. It is -1 if
--          other numbers tell it: they follow for each such counter, in order.
--            fixed window    start, count
--            sliding window  start, hits of the previous window, hits of the current one
--            bucket          microseconds until it is full, rem
--          Then, if writes failed, the code of the first error, and the places of the counters that were not
--          written.
--          If the node does not hold every key: 'not here', and the places of the counters that it does not
--          hold; then nothing was charged.
-- Cost     TIME and MGET once, one write for each counter that changes; on a cluster, one GET for each counter,
--          from Redis 7.4 on one more
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local pcall_redis, format, sub, tonumber = redis.pcall, string.format, string.sub, tonumber
local n, keys, plain = loadfile('numbers.lua')(ARGV[2]), KEYS, nil
if ARGV[3] then
  local elsewhere
  keys = { unpack(ARGV, 3) }
  plain, elsewhere = loadfile('node_read.lua')('GET', keys)
  if elsewhere then
    return cmsgpack.pack({ 'not here', unpack(elsewhere) })
  end
else
  plain = redis.call('MGET', unpack(keys))
end
local base, size, count = n[1], n[2], #keys
-- A counter's value becomes its state in the plain form, in which the reply has it, or else false: then
-- `states` has the state as the algorithm's file describes it, false if missing; `read`, before all calls.
local states, read, listed, algorithms = nil, nil, nil, nil
local reply = { now }

local function algorithm_of(at)
  -- Few writes need them, and a table costs Redis as much as ten reads of one.
  if not algorithms then
    states, read, listed, algorithms = {}, {}, {}, {}
  end
  local letter = n[at]
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

-- By the index of a limit of fixed windows: the text of the current window's number, and that number in a
-- counter's value.
local digits_of, number_of, outside_of = {}, {}, nil
local last, letter, digits, rate, cap = nil, nil, nil, nil, nil
for place = 1, count do
  local at, value, state = n[base + place], plain[place], false
  if at ~= last then
    last, letter, digits, cap, rate = at, n[at], digits_of[at], n[at + 2], n[at + 4]
    if letter == 'w' and not digits then
      local number = (now - now % cap) / cap % 900000000
      digits = format('%d', number)
      digits_of[at], number_of[at] = digits, number * 10000000000
    end
  end
  if not value then
    state = (digits or letter == 'b' or letter == 'l') and 0
  elseif digits then
    if sub(value, 1, -11) == digits then
      state = tonumber(sub(value, -10))
      state = state and state >= 0 and state < 1e10 and state % 1 == 0 and state
    end
  elseif letter == 'b' or letter == 'l' then
    local tat, rem = tonumber(value), 0
    if not tat then
      local whole, part = string.match(value, '^(%d+):(%d+)$')
      tat, rem = tonumber(whole), tonumber(part) or 0
    end
    state = 0
    if tat and tat >= now then
      local ahead = tat - now
      state = ahead * rate + rem
      -- Not exact above the capacity.
      state = state <= cap and rem < rate and ahead % 1 == 0 and state
    end
  end
  if state then
    plain[place], reply[place + 1] = state, state
  else
    local parsed, outside = algorithm_of(at).parse(value, n, at)
    plain[place], states[place], reply[place + 1] = false, parsed or false, parsed and -1 or 0
    read[place] = states[place]
    listed[#listed + 1] = parsed and { letter, parsed }
    if outside then
      outside_of = outside_of or {}
      outside_of[place] = true
    end
  end
end

-- Decides a check by the algorithm's file. Returns whether it passes, and the state to return to if the call
-- is rejected.
local function step(place, at, op, cost)
  local algorithm, state = algorithm_of(at), states[place]
  if plain[place] then
    -- A debt in credits.
    local debt, rate = plain[place], n[n[base + place] + 4]
    local rem = debt % rate
    state = { tat = now + (debt - rem) / rate, rem = rem }
    read[place] = debt == reply[place + 1] and state
    plain[place] = false
  end
  local passes, _, _, _, _, write, far = algorithm.step(state or nil, op, cost, n, at)
  states[place] = write or state
  -- What is clamped has no room for a take, so that `write` has no charge.
  return passes, far and write or state
end

local i, r, before = base + count + 1, count + 2, nil
while i <= size do
  local checks, accounting, width = n[i], nil, 2
  if checks == 0 then
    accounting, checks, width, i = n[i + 1], n[i + 2], 5, i + 2
  end
  local start, passed, refused, quotas, decided = i + 1, 0, false, nil, checks
  if outside_of then
    for c = 1, checks do
      if outside_of[n[start + width * (c - 1)]] then
        passed, decided = -1, 0
      end
    end
  end
  i = start
  for c = 1, decided do
    local place, cost, op, role = n[i], n[i + 1], 'take', 'required'
    local own, state, passes = n[base + place], plain[place], nil
    local at = own
    if accounting then
      at, op, role = n[i + 2], n[i + 3], n[i + 4]
    end
    i = i + width
    if state and digits_of[own] then
      local after = state + cost
      passes = after <= n[at + 1]
      if passes and op == 'take' then
        plain[place] = after
      end
    elseif state and state <= n[at + 2] and n[at + 4] == n[own + 4] then
      local spare, unit, floor = n[at + 1] - cost, n[at + 3], n[at + 5]
      if floor > 1 then
        spare = spare - floor + 1
      end
      passes = spare >= 0 and state <= spare * unit
      if passes and op == 'take' then
        plain[place] = state + cost * unit
      end
    else
      passes, state = step(place, at, op, cost)
    end
    if checks > 1 then
      before = before or {}
      before[c] = state
    end
    if passes then
      passed = passed + 1
    else
      refused = refused or role == 'required'
    end
    if accounting and role ~= 'required' and role ~= 'shadow' then
      -- Whether all checks of the quota group pass.
      quotas = quotas or {}
      quotas[role] = quotas[role] ~= false and passes or false
    end
  end
  if quotas then
    local quota_passes = false
    for _, passes in pairs(quotas) do
      quota_passes = quota_passes or passes
    end
    refused = refused or not quota_passes
  end
  if refused and accounting ~= 'independent' then
    for c = 1, checks > 1 and checks or 0 do
      local place = n[start + width * (c - 1)]
      if plain[place] then
        plain[place] = before[c]
      else
        states[place] = before[c]
      end
    end
  end
  reply[r], r, i = passed, r + 1, start + width * checks
end

for l = 1, listed and #listed or 0 do
  local letter, state = listed[l][1], listed[l][2]
  if letter == 's' then
    reply[r], reply[r + 1] = math.min(state.start, 9007199254740992), math.min(state.prev, 4294967295)
    reply[r + 2], r = math.min(state.cur, 4294967295), r + 3
  elseif letter == 'w' or letter == 'k' then
    reply[r], reply[r + 1], r = state.start, state.count, r + 2
  else
    local ahead = state.tat >= now and math.min(math.ceil(state.tat - now), 9007199254740992) or 0
    reply[r], reply[r + 1], r = ahead, math.min(state.rem, 4294967295), r + 2
  end
end

local failed, text, px = false, nil, nil
last = nil
for place = 1, count do
  local state, was, done = plain[place], reply[place + 1], nil
  if state and state ~= was then
    local key, at = keys[place], n[base + place]
    local number = number_of[at]
    if number then
      local now_is = nil
      -- Without hits, the counter may be missing.
      if was > 0 then
        -- Unlike INCRBY, INCR needs no formatted number.
        now_is = state - was == 1 and pcall_redis('INCR', key) or pcall_redis('INCRBY', key, format('%d', state - was))
      end
      -- INCRBY fails on text that is not a whole number.
      if now_is ~= number + state then
        local length = n[at + 2]
        local left = length - now % length + 1999
        px = format('%d', (left - left % 1000) / 1000 + extra_ms)
        done = pcall_redis('SET', key, format('%s%010d', digits_of[at], state), 'PX', px)
      end
    else
      -- Buckets of one write often have the same debt, for example if all were full.
      if state ~= last or n[at + 4] ~= rate then
        last, rate = state, n[at + 4]
        local rem = state % rate
        local ahead = (state - rem) / rate
        local left = ahead + 1999
        text = format(rem > 0 and '%d:%d' or '%d', now + ahead, rem)
        px = format('%d', (left - left % 1000) / 1000 + extra_ms)
      end
      done = pcall_redis('SET', key, text, 'PX', px)
    end
  elseif not state and states[place] ~= read[place] then
    local at = n[base + place]
    local saved, err = pcall(algorithm_of(at).save, keys[place], states[place], n, at)
    done = not saved and (type(err) == 'table' and err or { err = err })
  end
  if done and done.err then
    if not failed then
      failed, reply[r], r = true, string.match(done.err, '%u%u+') or 'ERR', r + 1
    end
    reply[r], r = place, r + 1
  end
end
return cmsgpack.pack(reply)
