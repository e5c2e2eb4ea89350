#!lua
-- Decides any call: all checks whose keys share a cluster slot (on one server: all checks of the
-- call), as if nothing ran in between. Everything is read and decided before the first write.
-- Calls that only take have scripts of their own: fixed_window.lua, bucket.lua, takes.lua.
--
-- KEYS[i]  the counter of check i; the same counter may come twice. Refunds come first.
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- ARGV[2]  accounting: 'a' all or nothing, 'i' independent
-- ARGV[3]  stride: how many arguments each check has
-- then of each check; what it does not need is left out at the end of its stride, or empty:
--   +1  word: three letters. Form: w fixed window, a bucket in arrival form, c bucket in credit
--       form; k calendar window, s sliding window, l sliding log, n concurrency, h hybrid classes:
--       their arguments from +2 on stand in their algorithm's file. Operation: t take, p peek, g give
--       back, d take whatever the verdict (a debt; `charge: always`; buckets then come in form c).
--       Role: r required, q quota, s shadow
--   form w                        forms a and c (bucket.lua says what credits are)
--   +2  cost: hits                +2  need: credits; capacity + 1 or more where they never fit
--   +3  limit: hits per window    +3  capacity: credits of a full bucket, less what a floor keeps
--   +4  length_us                 +4  rate: credits per microsecond (c only)
--   +5  cap: the highest count    +5  cap: the largest debt in credits
--       (where it is not the limit, or not the capacity)
--
-- State    each counter's, as its algorithm's file says
-- Reply    {now, then of each check: used (refused: -1 - used), in form c the rest, for d charged;
--          of forms k, s, l, n and h: available (refused: -1 - available), wait (0: none), reset,
--          charged, and of what was charged since (its time or window) and entry;
--          then threes: 0, how many counters were from the far future, 0;
--          i, 1, 0: the counter of check i, a window, is one ahead of the clock;
--          i, ahead, rest: the debt that refused check i, where it is not the one after the call}.
--          Used is the counter after the call: hits counted, or whole microseconds of debt;
--          charged is in hits or credits.
-- Cost     TIME once, one GET per counter, one write per counter that changes (a log and slots take
--          some more, see there)

-- insert fixed_window.clock
local all_or_nothing, stride, checks = ARGV[2] == 'a', ARGV[3] + 0, #KEYS
local byte = string.byte

-- A counter has one state at work within a call: what is certain (as stored, less refunds, plus
-- debts) and, once a check of it has passed, what it is if the call is admitted.
--
-- Twelve places per check, all in one table, because tables are what costs here. Of the counter, at
-- its first check: 1, 2 certain; 3, 4 if admitted, else false; 5 the stored count that INCRBY can go
-- on from, else false; 6 it must be written. Of the check: 7 it passes; 8 its counter's places; 9, 10
-- the debt that a refusal met; 11 what a debt was charged for certain, 12 if admitted, else false.
-- Forms k, s, l, n and h keep tables that are never changed in 1 and 3, beside each the check that
-- wrote it, and in 9 what the check is told.
local m = {
  0, 0, false, false, false, false, false, 0, 0, 0, 0, false,
  0, 0, false, false, false, false, false, 0, 0, 0, 0, false,
}
local places, forms = {}, {}
local clamped, refused, quotas, quota_passes = 0, false, false, false

for i = 1, checks do
  local key, at, o = KEYS[i], 3 + (i - 1) * stride, (i - 1) * 12
  local form, op, role = byte(ARGV[at + 1], 1, 3)
  local need, capacity = ARGV[at + 2] + 0, ARGV[at + 3] + 0
  local cap = stride > 4 and tonumber(ARGV[at + 5]) or capacity
  local c, passes = places[key], true
  local new = not c
  if new then
    c, places[key] = o, o
  end

  if form == 119 then -- w
    local cost, limit, length = need, capacity, ARGV[at + 4] + 0
    if new then
      -- insert fixed_window.read
      m[c + 5] = held and count
      -- insert fixed_window.fit
      if far then clamped = clamped + 1 end
      m[c + 1], m[c + 2], m[c + 3], m[c + 4], m[c + 6] = count, window, false, false, far
    end
    local count = m[c + 3] or m[c + 1]
    if count > cap then count = cap end
    if op == 112 then -- p
      passes = count < limit
    elseif op == 103 then -- g
      if count > 0 and (m[c + 5] or m[c + 6]) then
        m[c + 1], m[c + 6] = count > cost and count - cost or 0, true
      end
    else
      passes = count + cost <= limit
      if op == 100 then -- d
        m[o + 12] = false
        for side = 0, 1 do
          local had = m[c + 1 + 2 * side]
          if had then
            if had > cap then had = cap end
            local has = had + cost < cap and had + cost or cap
            m[c + 1 + 2 * side], m[o + 11 + side] = has, has - had
            if has > had then m[c + 6] = true end
          end
        end
      elseif passes then
        m[c + 3] = count + cost
      end
    end
  elseif form == 97 or form == 99 then -- a, c
    local rate = form == 99 and ARGV[at + 4] + 0
    if new then
      -- insert bucket.read
      m[c + 1], m[c + 2], m[c + 3], m[c + 4], m[c + 5], m[c + 6] = ahead, rest, false, false, false, false
    end
    local admitted = m[c + 3]
    local ahead, rest = admitted or m[c + 1], admitted and m[c + 4] or m[c + 2]
    -- insert bucket.fit
    if far then
      clamped = clamped + 1
      if admitted then m[c + 3], m[c + 4] = ahead, rest end
      if not admitted or (m[c + 1] - 1000000) * (rate or 1) > cap then
        m[c + 1], m[c + 2], m[c + 6] = ahead, rest, true
      end
    end
    if op == 116 then -- t
      -- insert bucket.check
      if passes then
        -- insert bucket.charge
        m[c + 3], m[c + 4] = ahead, rest
      end
    elseif op == 103 then -- g
      if need > 0 and (ahead > 0 or rest > 0) then
        local rate = rate or 1
        local rest_back = need % rate
        local ahead_back = (need - rest_back) / rate
        -- insert refund.lower
        m[c + 1], m[c + 2], m[c + 6] = ahead, rest, true
      end
    else
      -- insert bucket.check
      if op == 100 then -- d
        m[o + 12] = false
        for side = 0, 1 do
          local ahead, rest = m[c + 1 + 2 * side], m[c + 2 + 2 * side]
          if ahead then
            if rest >= rate then ahead, rest = ahead + 1, 0 end
            local credits = cap - ahead * rate - rest
            if credits > need then credits = need end
            m[o + 11 + side] = credits > 0 and credits or 0
            if credits > 0 then
              local part = (rest + credits) % rate
              ahead, rest = ahead + (rest + credits - part) / rate, part
              m[c + 1 + 2 * side], m[c + 2 + 2 * side], m[c + 6] = ahead, rest, true
            end
            m[o + 9], m[o + 10] = ahead, rest
          end
        end
      end
    end
    if not passes and op ~= 100 then
      m[o + 9], m[o + 10] = ahead, rest
    end
  else
    local f = forms[form]
    if not f then
      f = {}
      forms[form] = f
      if form == 115 then -- s
        f.load = function(key, _, length)
          length = length + 0
          -- insert sliding_window.load
          return start and { start, prev, cur }
        end
        f.step = function(s, op, cost, limit, length, cap, tick)
          limit, length, cap, tick = limit + 0, length + 0, cap + 0, tick + 0
          local start, prev, cur = s and s[1], s and s[2] or 0, s and s[3] or 0
          -- insert sliding_window.read
          if op == 103 then
            local newest = cur < cost and cur or cost
            local after = math.max(prev - (cost - newest), 0)
            local changed = far or newest > 0 or after ~= prev
            return changed and { start, after, cur - newest }, true, 0, 0, 0, 0, far
          end
          local passes, wait
          -- insert sliding_window.check
          local charged = 0
          if op ~= 112 and (passes or op == 100) then
            charged = math.min(cur + cost, cap) - cur
            cur = cur + charged
            if not passes then
              local passes = false
              -- insert sliding_window.check
            end
          end
          return (far or charged > 0) and { start, prev, cur }, passes, wait, charged, start, 0, far
        end
        f.tell = function(s, limit, length, cap, tick)
          limit, length, cap, tick = limit + 0, length + 0, cap + 0, tick + 0
          local start, prev, cur = s and s[1], s and s[2] or 0, s and s[3] or 0
          -- insert sliding_window.read
          -- insert sliding_window.tell
          return available, reset
        end
        f.save = function(key, s, _, length)
          local start, prev, cur = s[1], s[2], s[3]
          -- insert sliding_window.write
        end
      elseif form == 108 then -- l
        -- insert sliding_log.functions
      elseif form == 110 then -- n
        -- insert concurrency.functions
      elseif form == 104 then -- h
        -- insert hybrid.functions
      else -- k
        -- insert calendar.functions
      end
    end
    local cost, a, b, d, e = need, unpack(ARGV, at + 3, at + 6)
    if new then
      local state = f.load(key, a, b, d, e)
      if state and state.err then return state end
      if state and state.misfit then return { -1 } end
      m[c + 1], m[c + 2], m[c + 3], m[c + 4], m[c + 6] = state, i, false, i, false
    end
    local admitted = m[c + 3]
    local after, ok, wait, charged, since, entry, far = f.step(admitted or m[c + 1], op, cost, a, b, d, e)
    passes = ok
    m[o + 9] = { wait, charged, since, entry, 0, 0, 0 }
    if op == 116 and ok then -- t
      m[c + 3], m[c + 4] = after, i
      after = far and f.step(m[c + 1], 112, 1, a, b, d, e)
    elseif admitted then
      if after then m[c + 3], m[c + 4] = after, i end
      after, ok, wait, charged, since, entry = f.step(m[c + 1], op == 100 and op or 112, cost, a, b, d, e)
    end
    if op == 100 then
      m[o + 9][5], m[o + 9][6], m[o + 9][7] = charged, since, entry
    end
    if after then m[c + 1], m[c + 2], m[c + 6] = after, i, true end
    if far then clamped = clamped + 1 end
  end

  m[o + 7], m[o + 8] = passes, c
  if role == 114 then -- r
    refused = refused or not passes
  elseif role == 113 then -- q
    quotas, quota_passes = true, quota_passes or passes
  end
end

local charges = not all_or_nothing or not refused and (quota_passes or not quotas)
-- What these forms tell is read from what is stored, so before any of it changes.
for i = 1, next(forms) and checks or 0 do
  local o, at = (i - 1) * 12, 3 + (i - 1) * stride
  local f, told, c = forms[byte(ARGV[at + 1])], m[o + 9], m[o + 8]
  if f then
    told[8], told[9] = f.tell(charges and m[c + 3] or m[c + 1], unpack(ARGV, at + 3, at + 6))
  end
end

for i = 1, checks do
  local o = (i - 1) * 12
  local admitted = charges and m[o + 3]
  if m[o + 8] == o and (admitted or m[o + 6]) then
    local key, at = KEYS[i], 3 + (i - 1) * stride
    local form = byte(ARGV[at + 1])
    if forms[form] then
      local by = 3 + ((admitted and m[o + 4] or m[o + 2]) - 1) * stride
      m[o + 1] = admitted or m[o + 1]
      forms[form].save(key, m[o + 1], unpack(ARGV, by + 3, by + 6))
    elseif form == 119 then
      local count, window, length = admitted or m[o + 1], m[o + 2], ARGV[at + 4] + 0
      m[o + 1] = count
      if not (m[o + 5] and tonumber(redis.pcall('INCRBY', key, count - m[o + 5]))) then
        -- insert fixed_window.write
      end
    else
      local ahead, rest = admitted or m[o + 1], admitted and m[o + 4] or m[o + 2]
      m[o + 1], m[o + 2] = ahead, rest
      -- insert bucket.write
    end
  end
end

local reply, r, more = { now, 0, 0, 0, 0, 0 }, 2, clamped > 0 and { 0, clamped, 0 }
for i = 1, checks do
  local o, at = (i - 1) * 12, 3 + (i - 1) * stride
  local form, op = byte(ARGV[at + 1], 1, 2)
  local c, passes = m[o + 8], m[o + 7]
  local used, rest = m[c + 1], m[c + 2]
  if forms[form] then
    local told, from = m[o + 9], charges and 2 or 5
    reply[r], reply[r + 1], reply[r + 2] = passes and told[8] or -1 - told[8], told[1], told[9]
    reply[r + 3], reply[r + 4], reply[r + 5] = told[from], told[from + 1], told[from + 2]
    r = r + 6
  elseif form == 119 then
    if rest * ARGV[at + 4] > now then
      more = more or {}
      more[#more + 1], more[#more + 2], more[#more + 3] = i, 1, 0
    end
  else
    if not passes and (m[o + 9] ~= used or m[o + 10] ~= rest) then
      more = more or {}
      more[#more + 1], more[#more + 2], more[#more + 3] = i, m[o + 9], m[o + 10]
    end
    if form == 99 then
      reply[r + 1] = rest
    elseif rest > 0 then
      used = used + 1
    end
  end
  if not forms[form] then
    reply[r], r = passes and used or -1 - used, r + (form == 99 and 2 or 1)
    if op == 100 then
      reply[r], r = charges and m[o + 12] or m[o + 11], r + 1
    end
  end
end
for n = 1, more and #more or 0 do
  reply[r], r = more[n], r + 1
end
reply[r] = nil
return reply
