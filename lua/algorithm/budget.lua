#!lua
-- Budget: a fixed window or token bucket whose hits can be held under an id before they are used. Its letter is r,
-- followed by that of the window or bucket.
-- algorithms.lua describes the functions. The counter's key stores the window or bucket as described in its file.
-- Two more keys store the holds.
--
-- limit      the six values of the window or bucket, then:
--            +1  holds: index of the key of `amounts`; the next key is that of `ends`
--            +2  id: 14 bytes of the hold to make, to settle, or to leave out of a peek; else nil
--            +3  ttl_us: time until the hold ends; only to make a hold
-- State      amounts: a hash from ids to the hits held, 0 if settled. Its field '+' is MessagePack of sum (all hits
--            held), ids (their number), next (no hold ends before this time), and kept (when both keys expire)
--            ends: a sorted set of ids by the microsecond in which the hold ends. It may contain refunded ids
--            So most calls read two fields, and write them and one member, however many holds there are. A hold
--            takes 180 to 200 bytes.
--            Within a call: `loaded` is what was read. `changes` maps ids to the amount and the end that the call
--            sets: an end of true is unchanged, and an amount of false removes the id. The first take or hold
--            copies the state, and later steps change it in place. Tables have at most eight fields, and rarely
--            used functions are in holds/, because larger tables and more functions would cost more.
-- Expiry     up to one ttl after the last hold ends, so that not every hold has to set it
-- Cost       one read more than the window or bucket alone; two writes for a hold, and one more for a settle. Ended
--            holds are removed when the first unsettled hold ends, or the 32nd hold. A check that is refused because
--            of holds reads those that end before it could pass
--
-- Numbers are doubles. They are exact here, because all are below 2^53. Never tostring a timestamp: it rounds.
local letter, now, extra_ms, only_refund, keys = ...
local base = nil
if letter == 'b' then
  base = loadfile('algorithm/bucket.lua')(now, extra_ms, only_refund)
else
  base = loadfile('algorithm/fixed_window.lua')(now, extra_ms, only_refund)
end

-- Must equal HOLDS_MAX in src/algorithm/budget.rs.
local IDS_MAX = 10000

local function load(key, args, at, _, id)
  local used, err = nil, nil
  if not only_refund then
    used, err = base.load(key, args, at)
    if err then
      return nil, err
    end
  end
  local amounts, ends = keys[args[at + 7]], keys[args[at + 7] + 1]
  id = id or args[at + 8]
  local fields = redis.pcall('HMGET', amounts, '+', id or '+')
  local sum, ids, next_end, kept, amount = 0, 0, 0, 0, fields[2]
  if fields.err then
    if not string.find(fields.err, 'WRONGTYPE', 1, true) then
      return nil, fields
    end
  elseif fields[1] then
    sum, ids, next_end, kept = cmsgpack.unpack(fields[1])
    if next_end <= now or ids >= IDS_MAX then
      sum, ids, next_end, kept = loadfile('holds/ended.lua')(now, amounts, ends, sum, kept)
      amount = redis.call('HMGET', amounts, id or '+')[1]
    end
  end
  local loaded = { amounts = amounts, ends = ends, used = used, replaces = fields.err }
  if id then
    loaded[id] = tonumber(amount) or false
  end
  return { used = used, sum = sum, ids = ids, next_end = next_end, kept = kept, loaded = loaded, changes = nil }
end

if only_refund then
  -- Removes a hold, or restores the earlier hold that it renewed. Does nothing if the hold has since been
  -- renewed or settled.
  return { refund = function(key, limit, at, hits, held_until, former_end, id)
    local state, err = load(key, limit, at, nil, id)
    if not state or not state.loaded[id] or state.loaded[id] == 0 then
      return false, err
    end
    local own, restores = state.loaded[id], former_end > now
    if loadfile('holds/end_of.lua')(now, state, id) ~= held_until then
      return false
    end
    state.sum, state.ids = state.sum - own + (restores and hits or 0), state.ids - (restores and 0 or 1)
    state.next_end = restores and math.min(state.next_end, former_end) or state.next_end
    state.changes = { [id] = { restores and hits, former_end } }
    return true, loadfile('holds/save.lua')(now, extra_ms, state)
  end }
end

local function step(state, op, cost, args, at)
  local id, used, own = args[at + 8], state.used, nil
  if id then
    local change = state.changes and state.changes[id]
    own = state.loaded[id]
    if change then
      own = change[1]
    elseif own == nil then
      own = not state.loaded.replaces and tonumber(redis.call('HMGET', state.loaded.amounts, id)[1]) or false
      state.loaded[id] = own
    end
  end
  local is_hold = op == 'hold'
  if is_hold or op == 'take' or op == 'peek' or op == 'debt' then
    local held = state.sum - (own or 0)
    local passes, wait, charged, since, entry, write, far =
      base.step(used, is_hold and 'peek' or op, cost, args, at, held)
    local is_new, forgets = is_hold and not own, nil
    if not passes and held > 0 or is_new and state.ids >= IDS_MAX then
      passes, wait, forgets =
        loadfile('holds/wait.lua')(now, base, state, write or used, is_new, cost, held, args, at, IDS_MAX)
    end
    local holds, after = is_hold and passes, state
    if not (write or holds) then
      return passes, wait, charged, since, entry, nil, far
    elseif (is_hold or op == 'take') and passes and not state.is_admitted then
      -- The first take or hold copies the state.
      after = {
        used = used, sum = state.sum, ids = state.ids, next_end = state.next_end, kept = state.kept,
        loaded = state.loaded, changes = nil, is_admitted = true,
      }
      if state.changes then
        after.changes = {}
        for other, change in pairs(state.changes) do
          after.changes[other] = change
        end
      end
    end
    after.used = write or used
    if holds then
      local changes, ends = after.changes or {}, now + args[at + 9]
      if forgets then
        changes[forgets], after.ids = { false, 0 }, after.ids - 1
      end
      charged, since, entry = cost, 0, 0
      if own then
        -- The receipt has the end and the hits of the former hold, so that a refund can restore it.
        since = loadfile('holds/end_of.lua')(now, after, id)
        entry = since > 0 and own or 0
      end
      after.sum, after.ids = after.sum + cost - (own or 0), after.ids + (own and 0 or 1)
      if after.next_end <= now or ends < after.next_end then
        after.next_end = ends
      end
      changes[id], after.changes = { cost, ends }, changes
    end
    return passes, wait, charged, since, entry, after, far
  end
  local charged, since, entry, write, far, changes = 0, 0, 0, nil, false, false
  if op == 'settle' then
    local charges = cost > 0 and (own ~= 0 or loadfile('holds/end_of.lua')(now, state, id) == 0)
    _, _, charged, since, entry, write, far =
      base.step(used, charges and 'debt' or 'peek', charges and cost or 1, args, at)
    if own and own > 0 then
      local known = state.changes or {}
      local change = known[id]
      known[id], state.changes = { 0, change and change[2] or true }, known
      state.sum, changes = state.sum - own, true
    end
  else
    _, _, _, _, _, write, far = base.step(used, 'refund', cost, args, at)
    if op == 'reset' then
      local old = state.loaded
      state.sum, state.ids, state.next_end, state.kept, changes = 0, 0, 0, 0, true
      state.loaded = { amounts = old.amounts, ends = old.ends, used = old.used, replaces = true }
      state.changes = {}
    end
  end
  state.used = write or used
  return true, 0, charged, since, entry, (write or changes) and state, far
end

local function report(state, args, at)
  local available, reset = base.report(state.used, args, at)
  available = available - state.sum
  return available > 0 and available or 0, reset, state.sum
end

local function save(key, state, args, at)
  if state.used ~= state.loaded.used then
    base.save(key, state.used, args, at)
  end
  if state.changes then
    return loadfile('holds/save.lua')(now, extra_ms, state)
  end
end

return { load = load, step = step, report = report, save = save }
