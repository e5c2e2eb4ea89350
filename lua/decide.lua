#!lua
-- Decides several calls, one after another, as if each had been sent alone, but reads and writes each counter
-- only once. Replies with the counters' states before the calls, from which src/algorithm computes the outcomes.
-- Supports takes and peeks of fixed windows, sliding windows, and buckets, if the checks of a call all have
-- different counters; decide_call.lua decides all other calls. A block is also a counter. Its check comes right
-- before the check of the counter that it blocks, and counts as passed.
--
-- The plain state of a counter is a single number: the hits of the current fixed window, or the debt of a bucket
-- in credits. States that are not plain, such as those of sliding windows, take a slower path.
--
-- KEYS[i]  the counters, each once; none if they may be in several slots of one cluster node (see ARGV[5])
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  limits: MessagePack values in one argument. For each limit:
--   +1  most: largest plain state that a take may leave
--   +2  unit: what one hit adds to a plain state
--   +3  zero: nil; the script replaces it with the stored value that stands for the plain state 0
--   +4  top: largest plain state; larger states are not plain. nil if this algorithm has no plain states
--   +5  number: nil; the script replaces it with the current fixed window's number, as in the stored value
--   +6  rate: for a bucket, as in its file; else nil, which the script replaces with the text of `number`
--   +7  next: index of the next limit's first value
--   +8  letter: of the algorithm, as in the counter's key
--   +9  limit: the values listed in the algorithm's file
-- ARGV[3]  bytes: the calls, with one byte for each number; empty if a number does not fit
-- ARGV[4]  values: the calls as MessagePack values, if `bytes` is empty. First, for each counter:
--   +1  at: index of its limit's first value. If the counter has other limits, their windows are the same.
-- then for each simple call (all or nothing, with only required takes of one cost under the counters' limits):
--   +1  checks: their number
--   +2  cost: hits
--   then for each check:
--   +1  place: index of the counter in KEYS
-- or for each other call:
--   +1  0
--   +2  accounting: all_or_nothing or independent
--   +3  checks: their number
--   then for each check:
--   +1  place, +2  cost: as above
--   +3  at: index of its limit's first value
--   +4  op: take or peek; for a block: blocks (if the next check refuses) or blocked
--   +5  role: required, shadow, or the number of the quota group
--
-- ARGV[5]  keys: the counters, from this argument on, if there are no KEYS
--
-- State    as in each algorithm's file
-- Reply    a MessagePack array of
--          - for each counter, its plain state (0 if missing), or -1 if its state is not plain
--          - now
--          - the states that are not plain, in order:
--              fixed window    start, count
--              sliding window  start, hits of the previous window, hits of the current one
--              bucket          microseconds until it is full, rem
--              block           start, end
--          - for each call with a check that did not pass, its number and how many checks passed: -1 if the
--            server's clock is outside a calendar's windows; then the call charged nothing
--          - if writes failed, the code of the first error, and the places of the counters not written
--          If there is only one call and its first write fails, the reply is that error.
--          If the node does not hold every key: 'not here', and the places of the counters that it does not
--          hold; then nothing was charged.
-- Cost     TIME and MGET once, and one write for each counter that changes. Without KEYS, one GET for each counter
--          instead of MGET, and one more from Redis 7.4 on
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local pcall_redis, format, match, tonumber = redis.pcall, string.format, string.match, tonumber

-- Fast path for a single take of a counter with a plain state. Costs Redis a quarter less than the code below.
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

local limits, keys, plain, huge = { cmsgpack.unpack(ARGV[2]) }, KEYS, nil, math.huge
-- Many values come as one array, because they would not fit on Lua's stack.
limits = limits[2] and limits or limits[1]
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
-- Of each counter: `plain` has the stored value, and below the new state if that is plain. If it is not,
-- `huge` is true, `states` has the current state in the form that the algorithm's file describes (false if
-- missing), and `read` has the state before all calls.
-- `reply` starts at about its final size: growing an empty list costs Redis 2 % of a call.
local reply = count > 1 and { false, false, false } or {}
local states, read, algorithms, outside_of = nil, nil, nil, nil

local function algorithm_of(at)
  -- Created only when needed, because a new table costs Redis as much as ten reads from one.
  if not algorithms then
    states, read, algorithms = {}, {}, {}
  end
  local letter = limits[at + 7]
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

-- Fills in `zero`, `number`, and `rate` of each limit (see ARGV[2]). `zero` is false if a stored value minus
-- `zero` would not be the exact plain state.
local limit = 1
while limits[limit] do
  if limits[limit + 7] == 'w' then
    local length = limits[limit + 9]
    local window = (now - now % length) / length % 900000000
    limits[limit + 4], limits[limit + 5] = window * 10000000000, format('%d', window)
    -- With a larger number, stored values are not exact in a double.
    limits[limit + 2] = window < 900000 and limits[limit + 4]
  else
    limits[limit + 2] = limits[limit + 5] == 1 and now
    limits[limit + 3] = limits[limit + 3] or -1
  end
  limit = limits[limit + 6]
end

-- Reads counters from `first` on, as long as their states are plain. Returns the place of the first other one.
-- Takes arguments instead of upvalues, which would cost Redis more.
local function read_plain(first, count, calls, limits, plain, reply, sub)
  for place = first, count do
    local at, value, state = calls[place], plain[place], 0
    if value then
      local zero = limits[at + 2]
      if zero then
        state = value - zero
      elseif limits[at + 4] and sub(value, 1, -11) == limits[at + 5] then
        state = sub(value, -10) - 0
      else
        return place
      end
    end
    if not (state >= 0 and state <= limits[at + 3] and state % 1 == 0) then
      return place
    end
    plain[place], reply[place] = state, state
  end
  return count + 1
end

local place, r = 1, count + 2
while place <= count do
  local at, value, state = calls[place], plain[place], nil
  if not value or limits[at + 2] or limits[at + 4] then
    -- Arithmetic on text that is not a number raises an error.
    local is_read, stop = pcall(read_plain, place, count, calls, limits, plain, reply, string.sub)
    while not is_read and reply[place] do
      place = place + 1
    end
    place = is_read and stop or place
    at, value = calls[place], plain[place]
  end
  if place <= count then
    local letter, rate = limits[at + 7], limits[at + 5]
    if letter == 'b' or letter == 'l' then
      local tat, rem = match(value, '^(%d+):?(%d*)$')
      if tat then
        tat, rem = tat - now, tonumber(rem) or 0
        state = tat < 0 and 0 or rem < rate and tat * rate + rem
      end
    end
    -- A debt above `top`, limits[at + 3], cannot be stored exactly as one number.
    if state and state <= limits[at + 3] then
      plain[place], reply[place] = state, state
    else
      local parsed, outside = algorithm_of(at).parse(value, limits, at + 7)
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
  -- Charges check by check, because usually all pass. If one does not, its call's charges are undone below.
  for c = i + 2, i + 1 + checks do
    local place = calls[c]
    local at = calls[place]
    local after = plain[place] + cost * limits[at + 1]
    if after > limits[at] then
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
      plain[place] = plain[place] - cost * limits[calls[place] + 1]
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
      if limits[at + 7] == 'x' then
        passes, state = true, states[place]
      -- A debt in credits only applies to limits of the same rate.
      elseif state < huge and state <= limits[at + 3] and limits[at + 5] == limits[own + 5] then
        local after = state + cost * limits[at + 1]
        passes = after <= limits[at]
        if passes and op == 'take' then
          plain[place] = after
        end
      else
        local algorithm, write, far, _ = algorithm_of(at), nil, nil, nil
        if state < huge then
          -- Converts the debt in credits to a bucket's state.
          local rate = limits[own + 5]
          local rem = state % rate
          states[place] = { tat = now + (state - rem) / rate, rem = rem }
          read[place] = state == reply[place] and states[place]
          plain[place] = huge
        end
        state = states[place]
        passes, _, _, _, _, write, far = algorithm.step(state or nil, op, cost, limits, at + 7)
        states[place] = write or state
        -- A clamped counter is full, so `write` contains no charge: it is the state before this check.
        state = far and write or state
      end
      before = before or {}
      before[c] = state
      if block then
        passes = passes and not is_blocked
        -- The block begins even if the call is rejected.
        if block.begins and not passes and not is_blocked then
          local begun = algorithm_of(block.at).begin(limits, block.at + 7)
          states[block.place], before[c - 1] = begun, begun
        end
        block = nil
      elseif limits[at + 7] == 'x' then
        local left = algorithm_of(at).left(state, limits, at + 7)
        block = { place = place, at = at, left = left, begins = op == 'blocks' }
      end
      if passes then
        passed = passed + 1
      else
        refused = refused or role == 'required'
      end
      if accounting and role ~= 'required' and role ~= 'shadow' then
        -- True for a quota group while all of its checks pass.
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
    local number, charge, now_is, done = limits[at + 4], state - was, nil, nil
    -- A counter without hits may be missing, and INCR would create it without an expiry.
    if number and was > 0 then
      -- Unlike INCRBY, INCR needs no formatted number.
      now_is = charge == 1 and pcall_redis('INCR', key) or pcall_redis('INCRBY', key, format('%d', charge))
    end
    if state == huge then
      if states[place] ~= read[place] then
        local saved, err = pcall(algorithm_of(at).save, key, states[place], limits, at + 7)
        done = not saved and (type(err) == 'table' and err or { err = err })
      end
    elseif not number then
      -- Reuses the text of the last bucket. Debts are often equal, for example if all buckets were full.
      if state ~= last or limits[at + 5] ~= rate then
        last, rate = state, limits[at + 5]
        local rem = state % rate
        local ahead = (state - rem) / rate
        local left = ahead + 1999
        text = format(rem > 0 and '%d:%d' or '%d', now + ahead, rem)
        px = format('%d', (left - left % 1000) / 1000 + extra_ms)
      end
      done = pcall_redis('SET', key, text, 'PX', px)
    elseif now_is ~= number + state then
      -- INCRBY was not called, or failed because the stored text is not a whole number.
      local length = limits[at + 9]
      local left = length - now % length + 1999
      local expiry = format('%d', (left - left % 1000) / 1000 + extra_ms)
      done = pcall_redis('SET', key, format('%s%010d', limits[at + 5], state), 'PX', expiry)
    end
    if not (done and done.err) then
      made = true
    elseif nth == 2 and not made and limits[at + 7] ~= 'x' then
      -- There is only one call, and it has charged nothing.
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
