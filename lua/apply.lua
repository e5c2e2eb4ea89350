#!lua
-- Decides any call: all checks whose keys share a cluster slot (on one server: all checks of the call),
-- as if nothing ran in between. Everything is read and decided before the first write. Common calls have
-- faster scripts: single_fixed_window.lua, single_bucket.lua, single_sliding_window.lua and multi_check.lua.
--
-- KEYS[i]  the counter of check i; the same counter may come twice. Refunds come first.
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  accounting: all_or_nothing or independent
-- ARGV[3]  stride: how many arguments each check has
-- ARGV[4]  checks: MessagePack, one after the other, of each check (then nil, up to the stride):
--   +1  letter: the algorithm's, as in the counter's key
--   +2  op: take, peek, refund, or debt (a take that is charged whatever its verdict)
--   +3  role: required, quota or shadow
--   +4  cost: hits
--   +5  limit: what the algorithm's file lists, one after the other
--
-- State    each counter's, as its algorithm's file says
-- Reply    {now, clamped (counters that were from the far future), then six numbers of each check:
--          available (refused: -1 - available), wait (0: none), reset, charged, since, entry}. Where the
--          server's clock is in none of a calendar's windows: {-1}, and nothing was done.
-- Cost     TIME once; what load and save of each counter cost; refused: no write
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local all_or_nothing, stride, args = ARGV[2] == 'all_or_nothing', ARGV[3] + 0, { cmsgpack.unpack(ARGV[4]) }
local checks, algorithms = #KEYS, {}

-- A counter has two states at work within a call: `certain` is what becomes of it in any case (as stored,
-- after refunds and debts), `admitted` what becomes of it if the call is admitted: nil until a check of it
-- passes. `certain_at` and `admitted_at`: where the limits of the checks that wrote them are; false: not
-- written.
local counters, debts = {}, {}
local reply, clamped = { now, 0, 0, 0, 0, 0, 0, 0 }, 0
local refused, quotas, quota_passes = false, false, false
for i = 1, checks do
  local at, key, _ = (i - 1) * stride, KEYS[i], nil
  local letter, op, role, cost, limit = args[at + 1], args[at + 2], args[at + 3], args[at + 4], at + 4
  local algorithm, counter = algorithms[letter], counters[key]
  if not algorithm then
    algorithm = loadfile('algorithms.lua')(letter, now, extra_ms)
    algorithms[letter] = algorithm
  end
  if not counter then
    local state, err = algorithm.load(key, args, limit)
    if err then
      return err
    end
    counter = { certain = state, admitted = nil, certain_at = false, admitted_at = false }
    counters[key] = counter
  end

  local passes, wait, charged, since, entry, write, far =
    algorithm.step(counter.admitted or counter.certain, op, cost, args, limit)
  local r = 6 * i - 3
  reply[r], reply[r + 1], reply[r + 2] = passes, wait, 0
  reply[r + 3], reply[r + 4], reply[r + 5] = charged, since, entry
  if role == 'quota' then
    quotas, quota_passes = true, quota_passes or passes
  elseif role == 'required' and not passes then
    refused = true
  end
  if far then
    clamped = clamped + 1
  end

  if op == 'take' and passes then
    counter.admitted, counter.admitted_at, write = write, limit, nil
    if far then
      _, _, _, _, _, write = algorithm.step(counter.certain, 'peek', 1, args, limit)
    end
  elseif counter.admitted then
    if write then
      counter.admitted, counter.admitted_at = write, limit
    end
    _, _, charged, since, entry, write =
      algorithm.step(counter.certain, op == 'debt' and op or 'peek', cost, args, limit)
  end
  if write then
    counter.certain, counter.certain_at = write, limit
  end
  if op == 'debt' then
    -- What it was charged if the call is not admitted.
    debts[i] = { charged, since, entry }
  end
end

local charges = not all_or_nothing or not refused and (quota_passes or not quotas)
reply[2] = clamped
-- Reports come before writes, because some read what is stored.
for i = 1, checks do
  local at, r, counter = (i - 1) * stride, 6 * i - 3, counters[KEYS[i]]
  local state = charges and counter.admitted or counter.certain
  local available, reset = algorithms[args[at + 1]].report(state, args, at + 4)
  reply[r], reply[r + 2] = reply[r] and available or -1 - available, reset
  if debts[i] and not charges then
    reply[r + 3], reply[r + 4], reply[r + 5] = unpack(debts[i])
  end
  if reply[r + 3] == 0 or not (charges or debts[i]) then
    reply[r + 3], reply[r + 4], reply[r + 5] = 0, 0, 0
  end
end
for i = 1, checks do
  local counter, save = counters[KEYS[i]], algorithms[args[(i - 1) * stride + 1]].save
  if charges and counter.admitted then
    save(KEYS[i], counter.admitted, args, counter.admitted_at)
  elseif counter.certain_at then
    save(KEYS[i], counter.certain, args, counter.certain_at)
  end
  -- The same counter may come again.
  counter.admitted, counter.certain_at = nil, false
end
return reply
