#!lua
-- Decides several calls, one after another, and writes each counter once: what the calls leave is what they
-- would leave if each had been sent by itself. Answers the counters' states before the calls, from which
-- src/algorithm computes the outcomes.
-- Takes and peeks of fixed windows, sliding windows, and buckets; the counters of one call are all different.
-- A block is a counter, too, whose check precedes that of the counter that it blocks, and counts as passed.
--
-- KEYS[i]  the counters, each once; none if they may be in several slots of a cluster's node
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  limits: MessagePack values in one argument. For each limit:
--   +1  most: the largest plain state after a take
--   +2  unit: what a hit adds to a plain state
--   +3  zero: nil, until the script sets it
--   +4  top: the largest state that is plain; nil if none is
--   +5  number: nil, until the script sets it
--   +6  rate: of a bucket, as in its file; else nil
--   +7  next: index of the next limit's first value
--   +8  letter: of the algorithm, as in the counter's key
--   +9  limit: the values listed in the algorithm's file
-- ARGV[3]  bytes: the calls in numbers of one byte each; empty if they do not fit
-- ARGV[4]  values: then the calls in MessagePack values. First for each counter:
--   +1  at: index of its limit's first value. Other limits of the counter have the same windows.
-- then for each call whose checks all are required takes of the same cost, under the counters' limits, all or
-- nothing:
--   +1  checks: their number
--   +2  cost: hits
--   then for each check:
--   +1  place: of the counter in KEYS
-- or for each other call:
--   +1  0
--   +2  accounting: all_or_nothing or independent
--   +3  checks: their number
--   then for each check:
--   +1  place, +2  cost: as above
--   +3  at: index of its limit's first value
--   +4  op: take or peek; of a block: blocks (if the next check refuses) or blocked
--   +5  role: required, shadow, or the number of the quota group
--
-- ARGV[5]  keys: without KEYS, from here on, the counters
--
-- State    as in each algorithm's file
-- Reply    a MessagePack array: for each counter its state; now; the states that are not plain; and for each
--          call of which not all checks passed its number and how many passed: -1 if the server's clock is
--          outside a calendar's windows, then it charged nothing.
--          A plain state is the hits of the current fixed window, or the debt of a bucket in credits. In the
--          place of any other is -1, and they follow in order:
--            fixed window    start, count
--            sliding window  start, hits of the previous window, hits of the current one
--            bucket          microseconds until it is full, rem
--            block           start, end
--          Then, if writes failed, the code of the first error, and the places of the counters that were not
--          written. If the first write of the only call fails, its error.
--          If the node does not hold every key: 'not here', and the places of the counters that it does not
--          hold; then nothing was charged.
-- Cost     TIME and MGET once, one write for each counter that changes; without KEYS, one GET for each counter,
--          from Redis 7.4 on one more
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local pcall_redis, format, match, tonumber = redis.pcall, string.format, string.match, tonumber

-- A write of one take of one counter whose state is plain costs Redis a quarter less here than below.
if #ARGV[3] == 4 and not ARGV[5] then
  local key, value, state = KEYS[1], pcall_redis('GET', KEYS[1]), 0
  local most, unit, _, top, _, rate, _, letter, _, length = cmsgpack.unpack(ARGV[2])
  local cost = string.byte(ARGV[3], 3)
  local window, text
  if letter == 'w' then
    window = (now - now % length) / length % 900000000
    text = format('%d', window)
    if value then
      state = not value.err and string.sub(value, 1, -11) == text and tonumber(string.sub(value, -10))
    end
  elseif top then
    if value and rate == 1 then
      state = tonumber(value)
      state = state and state - now
    elseif value and not value.err then
      local tat, rem = match(value, '^(%d+):?(%d*)$')
      tat, rem = tonumber(tat), tonumber(rem) or 0
      state = tat and tat >= now and rem < rate and (tat - now) * rate + rem
    end
  else
    state = false
  end
  if state and state >= 0 and state <= top and state % 1 == 0 then
    local after, px, done = state + cost * unit, nil, nil
    if after > most then
      return '\148' .. cmsgpack.pack(state, now, 1, 0)
    elseif window then
      if state > 0 then
        done = cost == 1 and pcall_redis('INCR', key) or pcall_redis('INCRBY', key, cost)
      end
      if done == window * 10000000000 + after then
        return '\146' .. cmsgpack.pack(state, now)
      end
      px, text = length - now % length + 1999, format('%s%010d', text, after)
    else
      local rem = after % rate
      local ahead = (after - rem) / rate
      px, text = ahead + 1999, format(rem > 0 and '%d:%d' or '%d', now + ahead, rem)
    end
    done = pcall_redis('SET', key, text, 'PX', format('%d', (px - px % 1000) / 1000 + extra_ms))
    return done.err and done or '\146' .. cmsgpack.pack(state, now)
  end
end

local n, keys, plain, huge = { cmsgpack.unpack(ARGV[2]) }, KEYS, nil, math.huge
-- An array, if they are too many values for Lua's stack.
n = n[2] and n or n[1]
if ARGV[5] then
  local elsewhere
  keys = { unpack(ARGV, 5) }
  plain, elsewhere = loadfile('node_read.lua')('GET', keys)
  if elsewhere then
    return cmsgpack.pack({ 'not here', unpack(elsewhere) })
  end
else
  plain = redis.call('MGET', unpack(keys))
end
local calls = ARGV[3] ~= '' and { string.byte(ARGV[3], 1, -1) } or { cmsgpack.unpack(ARGV[4]) }
calls = calls[2] and calls or calls[1]
local count, size = #keys, #calls
-- A counter's value becomes its plain state, which the reply has too, or else `huge`: then `states` has the
-- state as the algorithm's file describes it, false if missing; `read`, before all calls.
-- A list of about the right size, because growing an empty one costs Redis 2 % of a call.
local reply = count > 1 and { false, false, false } or {}
local states, read, algorithms, outside_of = nil, nil, nil, nil

local function algorithm_of(at)
  -- Few writes need them, and a table costs Redis as much as ten reads of one.
  if not algorithms then
    states, read, algorithms = {}, {}, {}
  end
  local letter = n[at + 7]
  local algorithm = algorithms[letter]
  if not algorithm then
    if letter == 'w' or letter == 'k' then
      algorithm = loadfile('algorithm/fixed_window.lua')(now, extra_ms)
    elseif letter == 's' then
      algorithm = loadfile('algorithm/sliding_window.lua')(now, extra_ms)
    elseif letter == 'x' then
      algorithm = loadfile('algorithm/block.lua')(now, extra_ms)
    else
      algorithm = loadfile('algorithm/bucket.lua')(now, extra_ms)
    end
    algorithms[letter] = algorithm
  end
  return algorithm
end

-- `number` becomes the current window's number as a counter's value has it, and `rate` the text of that
-- number. `zero` becomes the value of which a plain state is the distance, if the value is one number.
local limit = 1
while n[limit] do
  if n[limit + 7] == 'w' then
    local length = n[limit + 9]
    local window = (now - now % length) / length % 900000000
    n[limit + 4], n[limit + 5] = window * 10000000000, format('%d', window)
    -- Larger values are not exact in a double.
    n[limit + 2] = window < 900000 and n[limit + 4]
  else
    n[limit + 2] = n[limit + 5] == 1 and now
    n[limit + 3] = n[limit + 3] or -1
  end
  limit = n[limit + 6]
end

-- Reads counters whose states are plain, from `first` on. Returns the place of the first other one. Has no
-- upvalues, which cost Redis more than arguments.
local function read_plain(first, count, calls, n, plain, reply, sub)
  for place = first, count do
    local at, value, state = calls[place], plain[place], 0
    if value then
      local zero = n[at + 2]
      if zero then
        state = value - zero
      elseif n[at + 4] and sub(value, 1, -11) == n[at + 5] then
        state = sub(value, -10) - 0
      else
        return place
      end
    end
    if not (state >= 0 and state <= n[at + 3] and state % 1 == 0) then
      return place
    end
    plain[place], reply[place] = state, state
  end
  return count + 1
end

local place, r = 1, count + 2
while place <= count do
  local at, value, state = calls[place], plain[place], nil
  if not value or n[at + 2] or n[at + 4] then
    -- Arithmetic on a text that is no number raises an error.
    local is_read, stop = pcall(read_plain, place, count, calls, n, plain, reply, string.sub)
    while not is_read and reply[place] do
      place = place + 1
    end
    place = is_read and stop or place
    at, value = calls[place], plain[place]
  end
  if place <= count then
    local letter, rate = n[at + 7], n[at + 5]
    if letter == 'b' or letter == 'l' then
      local tat, rem = match(value, '^(%d+):?(%d*)$')
      if tat then
        tat, rem = tat - now, tonumber(rem) or 0
        state = tat < 0 and 0 or rem < rate and tat * rate + rem
      end
    end
    -- Not exact above the top.
    if state and state <= n[at + 3] then
      plain[place], reply[place] = state, state
    else
      local parsed, outside = algorithm_of(at).parse(value, n, at + 7)
      plain[place], states[place], reply[place] = huge, parsed or false, parsed and -1 or 0
      read[place] = states[place]
      if outside then
        outside_of = outside_of or {}
        outside_of[place] = true
      end
      if letter == 's' and parsed then
        reply[r], reply[r + 1] = math.min(parsed.start, 9007199254740992), math.min(parsed.prev, 4294967295)
        reply[r + 2], r = math.min(parsed.cur, 4294967295), r + 3
      elseif parsed and parsed.tat then
        local ahead = parsed.tat >= now and math.min(math.ceil(parsed.tat - now), 9007199254740992) or 0
        reply[r], reply[r + 1], r = ahead, math.min(parsed.rem, 4294967295), r + 2
      elseif parsed then
        reply[r], reply[r + 1], r = parsed.start, parsed.count, r + 2
      end
    end
    place = place + 1
  end
end
reply[count + 1] = now

local i, nth, before = count + 1, 1, nil
while i <= size do
  local checks, cost, failed = calls[i], calls[i + 1], nil
  -- Usually all checks pass.
  for c = i + 2, i + 1 + checks do
    local place = calls[c]
    local at = calls[place]
    local after = plain[place] + cost * n[at + 1]
    if after > n[at] then
      failed = c
      break
    end
    plain[place] = after
  end
  if checks > 0 and not failed then
    i = i + 2 + checks
  else
    local accounting, width, start = nil, 1, i + 2
    for c = start, failed and failed - 1 or 0 do
      local place = calls[c]
      plain[place] = plain[place] - cost * n[calls[place] + 1]
    end
    if checks == 0 then
      accounting, checks, width, start = cost, calls[i + 2], 5, i + 3
    end
    local passed, refused, quotas, decided, block = 0, false, nil, checks, nil
    if outside_of then
      for c = 1, checks do
        if outside_of[calls[start + width * (c - 1)]] then
          passed, decided = -1, 0
        end
      end
    end
    i = start
    for c = 1, decided do
      local place, op, role = calls[i], 'take', 'required'
      local own, state, passes = calls[place], plain[place], nil
      local at = own
      if accounting then
        cost, at, op, role = calls[i + 1], calls[i + 2], calls[i + 3], calls[i + 4]
      end
      i = i + width
      local is_blocked = block and block.left > 0
      op = is_blocked and 'peek' or op
      if n[at + 7] == 'x' then
        passes, state = true, states[place]
      -- A bucket's limits may differ in the rate.
      elseif state < huge and state <= n[at + 3] and n[at + 5] == n[own + 5] then
        local after = state + cost * n[at + 1]
        passes = after <= n[at]
        if passes and op == 'take' then
          plain[place] = after
        end
      else
        local algorithm, write, far, _ = algorithm_of(at), nil, nil, nil
        if state < huge then
          -- A debt in credits.
          local rate = n[own + 5]
          local rem = state % rate
          states[place] = { tat = now + (state - rem) / rate, rem = rem }
          read[place] = state == reply[place] and states[place]
          plain[place] = huge
        end
        state = states[place]
        passes, _, _, _, _, write, far = algorithm.step(state or nil, op, cost, n, at + 7)
        states[place] = write or state
        -- What is clamped has no room for a take, so that `write` has no charge.
        state = far and write or state
      end
      before = before or {}
      before[c] = state
      if block then
        passes = passes and not is_blocked
        -- A block begins even though the call is rejected.
        if block.begins and not passes and not is_blocked then
          local begun = algorithm_of(block.at).begin(n, block.at + 7)
          states[block.place], before[c - 1] = begun, begun
        end
        block = nil
      elseif n[at + 7] == 'x' then
        local left = algorithm_of(at).left(state, n, at + 7)
        block = { place = place, at = at, left = left, begins = op == 'blocks' }
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
      for c = 1, checks do
        local place = calls[start + width * (c - 1)]
        if plain[place] < huge then
          plain[place] = before[c]
        else
          states[place] = before[c]
        end
      end
    end
    i = start + width * checks
    if passed < checks then
      reply[r], reply[r + 1], r = nth, passed, r + 2
    end
  end
  nth = nth + 1
end

local failed, made, text, px, last, rate = false, false, nil, nil, nil, nil
for place = 1, count do
  local state, was = plain[place], reply[place]
  if state ~= was then
    local key, at = keys[place], calls[place]
    local number, charge, now_is, done = n[at + 4], state - was, nil, nil
    -- Without hits, the counter may be missing.
    if number and was > 0 then
      -- Unlike INCRBY, INCR needs no formatted number.
      now_is = charge == 1 and pcall_redis('INCR', key) or pcall_redis('INCRBY', key, format('%d', charge))
    end
    if state == huge then
      if states[place] ~= read[place] then
        local saved, err = pcall(algorithm_of(at).save, key, states[place], n, at + 7)
        done = not saved and (type(err) == 'table' and err or { err = err })
      end
    elseif not number then
      -- Buckets of one write often have the same debt, for example if all were full.
      if state ~= last or n[at + 5] ~= rate then
        last, rate = state, n[at + 5]
        local rem = state % rate
        local ahead = (state - rem) / rate
        local left = ahead + 1999
        text = format(rem > 0 and '%d:%d' or '%d', now + ahead, rem)
        px = format('%d', (left - left % 1000) / 1000 + extra_ms)
      end
      done = pcall_redis('SET', key, text, 'PX', px)
    elseif now_is ~= number + state then
      -- INCRBY fails on text that is not a whole number.
      local length = n[at + 9]
      local left = length - now % length + 1999
      local expiry = format('%d', (left - left % 1000) / 1000 + extra_ms)
      done = pcall_redis('SET', key, format('%s%010d', n[at + 5], state), 'PX', expiry)
    end
    if not (done and done.err) then
      made = true
    elseif nth == 2 and not made and n[at + 7] ~= 'x' then
      -- The only call has charged nothing.
      return done
    else
      if not failed then
        failed, reply[r], r = true, match(done.err, '%u%u+') or 'ERR', r + 1
      end
      reply[r], r = place, r + 1
    end
  end
end
return cmsgpack.pack(reply)
