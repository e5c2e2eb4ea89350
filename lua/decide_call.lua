#!lua
-- Decides any call atomically: all its checks or, on a cluster, those whose counters are on one node. Decides
-- every check before the first write. decide.lua decides common calls faster.
--
-- KEYS[i]  the counter of check i; checks may share a counter. Checks that refund or settle come first. After the
--          counters come the two keys of the holds of each budget. None if the counters are in several slots of
--          one cluster node (see ARGV[5])
-- ARGV[1]  now_us: see clock.lua
-- ARGV[2]  accounting: all_or_nothing, independent, or part (of an all_or_nothing call whose other checks
--          are decided elsewhere)
-- ARGV[3]  stride: number of values per check
-- ARGV[4]  checks: MessagePack, for each check these values, then nils up to the stride:
--   +1  letter: of the algorithm, as in the counter's key; for a budget, r and that letter
--   +2  op: take, peek, refund, or debt (a take that is charged even if refused). Budgets also have hold,
--       settle, and reset. A block, which precedes its counter, has blocks (if the counter refuses), blocked, and
--       refund (which lifts it)
--   +3  role: required, shadow, or the number of the quota group
--   +4  cost: hits
--   +5  limit: the values listed in the algorithm's file
-- ARGV[5]  keys: if there are no KEYS, from this argument on, the counters and the keys of holds, as in KEYS
--
-- State    as in each algorithm's file
-- Reply    {now, clamped (number of counters from the far future), then six numbers for each check:
--          available (-1 - available if refused), wait (0 for none), reset, charged, since, entry (for a peek of
--          a budget, the hits held)}. A part has two more for each check: available and reset as they are if the
--          call is rejected.
--          {-1} if the server's clock is outside a calendar's windows; then no counter changed.
--          'not here' if there are no KEYS and the node does not hold every key; then nothing was written.
-- Cost     TIME once, load and save of each counter; usually no write if the call is rejected. Without KEYS, also one
--          STRLEN for each counter, and one more from Redis 7.4 on
local keys = KEYS
if ARGV[5] then
  keys = { unpack(ARGV, 5) }
  local _, elsewhere = loadfile('node_read.lua')('STRLEN', keys)
  if elsewhere then
    return 'not here'
  end
end
local accounting, stride = ARGV[2], ARGV[3] + 0
local now, extra_ms = loadfile('clock.lua')(ARGV[1])
local all_or_nothing, is_part = accounting ~= 'independent', accounting == 'part'
local width, args = is_part and 8 or 6, { cmsgpack.unpack(ARGV[4]) }
-- Many values come as one array, because they would not fit on Lua's stack.
args = args[2] and args or args[1]
local checks, algorithms = #keys, {}
while not args[(checks - 1) * stride + 1] do
  checks = checks - 1
end

-- Within a call, a counter has two states. `certain` is its state if the call is rejected: the stored
-- state after refunds and debts. `admitted` is its state if the call is admitted; nil until a take passes.
-- `certain_at` and `admitted_at` are the indices of the limits under which these states last changed; false if
-- they did not change.
local counters, debts = {}, {}
-- Holders of each concurrency counter, so that one load reads the leases of all.
local holders = {}
-- True if an independent call makes a hold. If the call is rejected, its takes are charged, but it holds nothing.
local drops_holds = false
for i = 1, checks do
  local at, key = (i - 1) * stride, keys[i]
  drops_holds = drops_holds or args[at + 2] == 'hold' and not all_or_nothing
  if args[at + 1] == 'c' and args[at + 2] ~= 'peek' then
    holders[key] = holders[key] or {}
    table.insert(holders[key], args[at + 7] or string.rep('\0', 16))
  end
end
local reply, clamped = { now, 0, 0, 0, 0, 0, 0, 0 }, 0
local refused, quotas, block = false, false, nil
for i = 1, checks do
  local at, key, _ = (i - 1) * stride, keys[i], nil
  local letter, op, role, cost, limit = args[at + 1], args[at + 2], args[at + 3], args[at + 4], at + 4
  local algorithm, counter = algorithms[letter], counters[key]
  if not algorithm then
    algorithm = loadfile('algorithms.lua')(letter, now, extra_ms, false, keys)
    algorithms[letter] = algorithm
  end
  if not counter then
    local state, err = algorithm.load(key, args, limit, holders[key] or {})
    if err then
      return err
    end
    counter = { certain = state, admitted = nil, certain_at = false, admitted_at = false }
    counters[key] = counter
  end

  local is_blocked = block and block.left > 0
  if is_blocked and (op == 'take' or op == 'hold') then
    op = 'peek'
  end
  local passes, wait, charged, since, entry, write, far =
    algorithm.step(counter.admitted or counter.certain, op, cost, args, limit)
  if block then
    passes = passes and not is_blocked
    if block.begins and not passes and not is_blocked then
      block.counter.certain, block.counter.certain_at = block.begin(args, block.limit), block.limit
    end
    block = nil
  elseif letter == 'x' and op ~= 'refund' then
    local left = algorithm.left(counter.certain, args, limit)
    block = { counter = counter, limit = limit, left = left, begins = op == 'blocks', begin = algorithm.begin }
  end
  local r = width * (i - 1) + 3
  reply[r], reply[r + 1], reply[r + 2] = passes, wait, 0
  reply[r + 3], reply[r + 4], reply[r + 5] = charged, since, entry
  if role == 'required' then
    refused = refused or not passes
  elseif role ~= 'shadow' then
    -- True for a quota group while all of its checks pass.
    quotas = quotas or {}
    quotas[role] = quotas[role] ~= false and passes or false
  end
  if far then
    clamped = clamped + 1
  end

  local charged_if_rejected = op == 'debt' or op == 'settle' or op == 'take' and drops_holds
  if (op == 'take' or op == 'hold') and passes then
    counter.admitted, counter.admitted_at, write = write, limit, nil
    if charged_if_rejected then
      _, _, charged, since, entry, write = algorithm.step(counter.certain, 'take', cost, args, limit)
    elseif far then
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
  if charged_if_rejected then
    -- The charge that remains if the call is rejected.
    debts[i] = { charged, since, entry }
  end
end

local quota_passes = not quotas
if quotas then
  for _, passes in pairs(quotas) do
    quota_passes = quota_passes or passes
  end
end
local charges = not all_or_nothing and not drops_holds or not refused and quota_passes
reply[2] = clamped
-- Reports come before writes, because some of them read stored values.
for i = 1, checks do
  local at, r, counter = (i - 1) * stride, width * (i - 1) + 3, counters[keys[i]]
  local state = charges and counter.admitted or counter.certain
  local available, reset, held = algorithms[args[at + 1]].report(state, args, at + 4)
  reply[r], reply[r + 2] = reply[r] and available or -1 - available, reset
  if debts[i] and not charges then
    reply[r + 3], reply[r + 4], reply[r + 5] = unpack(debts[i])
  end
  if not (charges or debts[i]) or reply[r + 3] == 0 and reply[r + 5] == 0 then
    reply[r + 3], reply[r + 4], reply[r + 5] = 0, 0, 0
  end
  if held and args[at + 2] == 'peek' then
    reply[r + 5] = held
  end
  if is_part then
    reply[r + 6], reply[r + 7] = algorithms[args[at + 1]].report(counter.certain, args, at + 4)
  end
end
for i = 1, checks do
  local counter, save = counters[keys[i]], algorithms[args[(i - 1) * stride + 1]].save
  if charges and counter.admitted then
    save(keys[i], counter.admitted, args, counter.admitted_at)
  elseif counter.certain_at then
    save(keys[i], counter.certain, args, counter.certain_at)
  end
  -- Another check may have the same counter, which must be saved only once.
  counter.admitted, counter.certain_at = nil, false
end
return reply
