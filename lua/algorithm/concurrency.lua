#!lua
-- Concurrency: at most `slots` slots are in use at a time. A holder has one or more slots under one lease. When
-- the lease ends, they become free.
-- algorithms.lua describes the functions.
--
-- limit      +1  slots
--            +2  lease_us
--            +3  holder: 16 bytes; if nil, a take uses 16 zero bytes, and a refund does nothing
-- State      a sorted set. The 16 bytes of each holder are a member, whose score is the microsecond in which the
--            lease ends. If a holder has several slots, its 16 bytes and '+' are another member, whose score is
--            minus the slots beyond the first. The member '+' has the sum of these scores. So the slots in use
--            are a ZCOUNT and a score, and a call of any number of holders reads and writes with a handful
--            of commands. A packed string would be read and written whole.
--            Within a call: `stored` has the leases of the call's holders that were read, and `changed` those
--            that the call changed, both by holder. `added` has the changed ones in the order in which they end,
--            all later than the stored ones. A take of an unchanged state copies these lists; later takes change
--            them in place, and so do refunds.
-- Expiry     when the last lease ends
-- Cost       6 to 8 commands, and one more if holders have several slots; then it also reads each expired
--            holder and, for the wait of a refused check, each lease that ends before that. A call of 100 holders
--            costs as many instructions as 33 to 43 calls of one holder, 5 of them for arguments and reply.
--
-- Numbers are doubles. They are exact here, because all are below 2^53. Never tostring a timestamp: it rounds.
local now, extra_ms = ...

local NOBODY, FREE = string.rep('\0', 16), { slots = 0, ends = 0 }
-- Maximum number of values in one command: Lua's stack has room for 8,000.
local VALUES_MAX = 4000

-- Returns the member whose score counts a holder's slots beyond the first.
local function extra_member(holder)
  return table.concat({ holder, '+' })
end

-- Calls a command several times, if it has too many values for one. Returns all replies.
local function in_pieces(command, key, values)
  local replies = {}
  for from = 1, #values, VALUES_MAX do
    local reply = redis.call(command, key, unpack(values, from, math.min(from + VALUES_MAX - 1, #values)))
    for n = 1, type(reply) == 'table' and #reply or 0 do
      replies[from + n - 1] = reply[n]
    end
  end
  return replies
end

-- Returns the slots of each holder beyond the first.
local function extra_slots(key, holders)
  local names = {}
  for n, holder in ipairs(holders) do
    names[n] = extra_member(holder)
  end
  local scores = in_pieces('ZMSCORE', key, names)
  for n = 1, #names do
    scores[n] = -(tonumber(scores[n]) or 0)
  end
  return scores, names
end

-- Removes expired leases and their extra slots, so that no later call reads them. Returns the extra slots left.
local function drop_expired(key, total)
  local extra, names = extra_slots(key, redis.call('ZRANGE', key, 0, string.format('%d', now), 'BYSCORE'))
  local left, gone = total, {}
  for n, name in ipairs(names) do
    if extra[n] > 0 then
      left, gone[#gone + 1] = left - extra[n], name
    end
  end
  if left < total then
    in_pieces('ZREM', key, gone)
    redis.call('ZADD', key, -left, '+')
  end
  -- Also removes the member '+' if its score is 0.
  if #names > 0 then
    redis.call('ZREMRANGEBYSCORE', key, 0, string.format('%d', now))
  end
  return left
end

-- Reads the counter and the leases of these holders.
local function load(key, _, _, holders)
  local live = redis.pcall('ZCOUNT', key, string.format('(%d', now), '+inf')
  if type(live) == 'table' then
    if not string.find(live.err, 'WRONGTYPE', 1, true) then
      return nil, live
    end
    live = 0
  end
  local state = {
    key = key, live = live, in_use = live, extra = 0, stored_extra = 0, replaces = live == 0, passed = 0,
    stored = {}, changed = {}, added = {}, newest_stored = {}, oldest_stored = {}, oldest_extra = {},
  }
  if live == 0 then
    return state
  end
  local names = { '+' }
  for n, holder in ipairs(holders) do
    names[n + 1] = holder
  end
  local scores = in_pieces('ZMSCORE', key, names)
  local total = -(tonumber(scores[1]) or 0)
  -- Skipped if no holder has several slots, as usual: Redis searches up to 128 members for each name.
  local extra = total > 0 and extra_slots(key, holders) or {}
  for n, holder in ipairs(holders) do
    local ends = tonumber(scores[n + 1]) or 0
    if ends > now then
      state.stored[holder] = { slots = 1 + (extra[n] or 0), ends = ends }
    end
  end
  state.extra = total > 0 and drop_expired(key, total) or 0
  state.stored_extra, state.in_use = state.extra, live + state.extra
  -- Enough leases to contain the newest one of a holder that is not in this call.
  state.newest_stored = redis.call('ZRANGE', key, -math.min(#holders + 1, live), -1, 'WITHSCORES')
  return state
end

local function lease_of(state, holder)
  return state.changed[holder] or state.stored[holder] or FREE
end

local function copy(state)
  local after = {}
  for name, value in pairs(state) do
    after[name] = value
  end
  after.changed, after.added = {}, {}
  for _, lease in ipairs(state.added) do
    if lease.slots > 0 then
      local same = { holder = lease.holder, slots = lease.slots, ends = lease.ends }
      after.added[#after.added + 1], after.changed[lease.holder] = same, same
    end
  end
  for holder, lease in pairs(state.changed) do
    after.changed[holder] = after.changed[holder] or lease
  end
  return after
end

-- Changes a holder's lease in place.
local function set_lease(state, holder, slots, ends)
  local former, lease = lease_of(state, holder), { holder = holder, slots = slots, ends = ends }
  state.in_use = state.in_use + slots - former.slots
  state.extra = state.extra + math.max(slots - 1, 0) - math.max(former.slots - 1, 0)
  if state.changed[holder] then
    former.slots = 0
  end
  state.changed[holder] = lease
  if slots > 0 then
    state.added[#state.added + 1] = lease
  end
  return state
end

-- Returns the time at which the last lease ends; 0 if no slot is in use.
local function newest_end(state)
  local stored, at = state.newest_stored, #state.newest_stored - 2 * state.passed
  while at > 0 and state.changed[stored[at - 1]] do
    state.passed, at = state.passed + 1, at - 2
  end
  local added = state.added
  while #added > 0 and added[#added].slots == 0 do
    added[#added] = nil
  end
  local last = added[#added]
  return math.max(at > 0 and tonumber(stored[at]) or 0, last and last.ends or 0)
end

-- Returns the stored lease that ends as the nth: holder, slots, end as text. Reads leases in batches, each as large
-- as all before it. Does not create a table for each lease, because that would cost as much as reading it.
local function stored_lease(state, nth)
  local leases, extra = state.oldest_stored, state.oldest_extra
  local read = #leases / 2
  if nth > read then
    local from, count = read - state.live, math.min(math.max(read, 8), state.live - read)
    local found, holders = redis.call('ZRANGE', state.key, from, from + count - 1, 'WITHSCORES'), {}
    for n = 1, #found do
      leases[2 * read + n] = found[n]
    end
    if state.stored_extra > 0 then
      for n = 1, count do
        holders[n] = found[2 * n - 1]
      end
      for n, slots in ipairs((extra_slots(state.key, holders))) do
        extra[read + n] = slots
      end
    end
  end
  return leases[2 * nth - 1], 1 + (extra[nth] or 0), leases[2 * nth]
end

-- Returns the state after a clock that was far ahead: leases that end too late start again now. Drops members
-- that another program wrote.
local function clamp(state, lease)
  local leases, after = {}, copy(state)
  for nth = 1, state.live do
    local holder, slots, ends = stored_lease(state, nth)
    if #holder == 16 and not state.changed[holder] then
      leases[#leases + 1] = { holder = holder, slots = slots, ends = tonumber(ends) }
    end
  end
  for _, added in ipairs(after.added) do
    leases[#leases + 1] = added
  end
  after.live, after.replaces, after.in_use, after.extra, after.stored_extra = 0, true, 0, 0, 0
  after.stored, after.changed, after.added = {}, {}, {}
  after.newest_stored, after.passed = {}, 0
  for _, old in ipairs(leases) do
    set_lease(after, old.holder, old.slots, old.ends > now + 2 * lease and now + lease or old.ends)
  end
  table.sort(after.added, function(a, b) return a.ends < b.ends end)
  return after
end

-- Returns the microseconds until `cost` slots are free: 0 if they are now, nil if they never will be. Slots of the
-- holder `except` count as free.
local function until_free(state, cost, slots, except)
  if cost > slots then
    return nil
  end
  local over = state.in_use - (except and lease_of(state, except).slots or 0) + cost - slots
  if over <= 0 then
    return 0
  end
  if state.extra == 0 and state.stored_extra == 0 and not next(state.changed) and not state.stored[except] then
    local nth = over - state.live - 1
    return math.max(redis.call('ZRANGE', state.key, nth, nth, 'WITHSCORES')[2] - now, 1)
  end
  for nth = 1, state.live do
    local holder, held, ends = stored_lease(state, nth)
    if holder ~= except and not state.changed[holder] then
      over = over - held
      if over <= 0 then
        return math.max(ends - now, 1)
      end
    end
  end
  for _, lease in ipairs(state.added) do
    over = over - (lease.holder == except and 0 or lease.slots)
    if over <= 0 then
      return math.max(lease.ends - now, 1)
    end
  end
  return 1
end

local function step(state, op, cost, limit, at)
  local slots, lease, holder = limit[at + 1], limit[at + 2], limit[at + 3]
  local newest, write = newest_end(state), nil
  local clamped = newest > now + 2 * lease
  if clamped then
    state = clamp(state, lease)
    write, newest = state, newest_end(state)
  end
  if op == 'refund' then
    if holder and lease_of(state, holder).slots > 0 then
      write = set_lease(state, holder, 0, 0)
    end
    return true, 0, 0, 0, 0, write, clamped
  end
  holder = op ~= 'peek' and (holder or NOBODY) or nil
  local wait = until_free(state, cost, slots, holder)
  if wait ~= 0 or not holder then
    return wait == 0, wait or 0, 0, 0, 0, write, clamped
  end
  local held, since = lease_of(state, holder), math.max(newest - lease, now)
  local former_slots, former_end = held.slots, held.ends
  if not state.is_admitted then
    state = copy(state)
    state.is_admitted = true
  end
  write = set_lease(state, holder, cost, since + lease)
  if former_slots > 0 then
    -- A renewal charges nothing. Its receipt has the former end and hits, so that a refund can restore them.
    return true, 0, 0, former_end, former_slots, write, clamped
  end
  return true, 0, cost, since, 0, write, clamped
end

local function report(state, limit, at)
  return math.max(limit[at + 1] - state.in_use, 0), math.max(newest_end(state) - now, 0)
end

local function save(key, state)
  if state.replaces or state.in_use <= 0 then
    redis.call('PEXPIRE', key, -1)
    if state.in_use <= 0 then
      return
    end
  end
  local added, removed = {}, {}
  for holder, lease in pairs(state.changed) do
    if lease.slots > 0 then
      added[#added + 1], added[#added + 2] = lease.ends, holder
    elseif state.stored[holder] then
      removed[#removed + 1] = holder
    end
    if lease.slots > 1 then
      added[#added + 1], added[#added + 2] = 1 - lease.slots, extra_member(holder)
    elseif state.stored[holder] and state.stored[holder].slots > 1 then
      removed[#removed + 1] = extra_member(holder)
    end
  end
  if state.extra == 0 and state.stored_extra > 0 then
    removed[#removed + 1] = '+'
  end
  in_pieces('ZADD', key, added)
  in_pieces('ZREM', key, removed)
  -- After ZREM: if memory is full, Redis permits ZADD only in a script that has already written.
  if state.extra > 0 and state.extra ~= state.stored_extra then
    redis.call('ZADD', key, -state.extra, '+')
  end
  if not state.replaces then
    redis.call('ZREMRANGEBYSCORE', key, 0, string.format('%d', now))
  end
  redis.call('PEXPIRE', key, loadfile('ttl.lua')(newest_end(state) - now, extra_ms))
end

-- Frees the receipt's slots, if they are still in use. If former_end is set, the receipt is that of a renewal:
-- restores the former hits and end, unless the lease was renewed again.
local function refund(key, limit, at, hits, taken_at, former_end, holder)
  local state, err = load(key, limit, at, { holder })
  local lease = state and lease_of(state, holder)
  if not lease or lease.slots == 0 or former_end > 0 and lease.ends ~= taken_at + limit[at + 2] then
    return false, err
  end
  local restores = former_end > now
  save(key, set_lease(state, holder, restores and hits or 0, restores and former_end or 0))
  return true
end

return { load = load, step = step, report = report, save = save, refund = refund }
