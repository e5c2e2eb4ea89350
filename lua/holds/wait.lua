#!lua
-- Computes how long a check must wait until holds end that refuse it, or for a new hold until there are fewer ids:
-- wait(now, base, state, used, is_new, cost, held, args, at, ids_max) -> passes, wait, forgets (a settled id that
-- must be removed to make room; nil if none).
--
-- The check passes when the window or bucket first has room both for its hits and for those still held then. `wait`
-- is 0 if that never happens. Holds of this call end after all others.
local now, base, state, used, is_new, cost, held, args, at, ids_max = ...
-- Maximum number of values in one command: Lua's stack has room for 8,000.
local VALUES_MAX = 4000
local own, loaded, changes = args[at + 8], state.loaded, state.changes or {}

-- Calls visit(id, amount, end) for each hold in the order in which they end, until it returns true.
local function each_hold(visit)
  local from, count = 0, 32
  while not loaded.replaces do
    local found, names = redis.call('ZRANGE', loaded.ends, from, from + count - 1, 'WITHSCORES'), {}
    for n = 1, #found / 2 do
      names[n] = found[2 * n - 1]
    end
    local amounts = #names > 0 and redis.call('HMGET', loaded.amounts, unpack(names)) or {}
    for n, id in ipairs(names) do
      local change, amount = changes[id], tonumber(amounts[n])
      amount = change and (change[2] == true and change[1]) or not change and amount
      if amount and visit(id, amount, found[2 * n] + 0) then
        return
      end
    end
    if #names < count then
      break
    end
    from, count = from + count, math.min(2 * count, VALUES_MAX)
  end
  local added = {}
  for id, change in pairs(changes) do
    if change[2] ~= true and change[1] then
      added[#added + 1] = { id, change[1], change[2] }
    end
  end
  table.sort(added, function(a, b) return a[3] < b[3] end)
  for _, hold in ipairs(added) do
    if visit(unpack(hold)) then
      return
    end
  end
end

-- Returns the wait while `hits` are held; nil if the check never passes with them.
local function wait_with_held(hits)
  local passes, wait = base.step(used, 'peek', cost, args, at, hits)
  return passes and 0 or wait > 0 and wait or nil
end

local first = wait_with_held(held)
if first ~= 0 and cost <= args[at + 1] then
  local left = held
  each_hold(function(id, amount, ends)
    if first and first <= ends - now then
      return true
    elseif id ~= own and amount > 0 then
      left = left - amount
      local wait = wait_with_held(left)
      first = wait and math.min(first or math.huge, math.max(wait, ends - now)) or first
    end
  end)
end
if is_new and state.ids >= ids_max and first then
  local settled, first_end = nil, 0
  each_hold(function(id, amount, ends)
    first_end = first_end > 0 and first_end or ends
    settled = amount == 0 and id
    return settled
  end)
  if settled then
    return first == 0, first, first == 0 and settled or nil
  end
  first = math.max(first, first_end - now)
end
return first == 0, first or 0, nil
