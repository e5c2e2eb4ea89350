#!lua
-- Decides a call: all checks whose keys share a cluster slot (on one server: all checks of the
-- call), as if nothing ran in between. Everything is read and decided before the first write.
--
-- KEYS[i]  the counter of check i; the same counter may come twice. Give-backs come first.
-- ARGV[1]  now_us: microseconds since the epoch; empty in production, where the server's clock
--          counts. A number is a test's: then every expiry is a day longer
-- ARGV[2]  accounting: 'a' all or nothing, 'i' independent
-- ARGV[3]  stride: how many arguments each check has
-- then of each check:
--   +1  word: three letters. Form: w fixed window, a bucket in arrival form, c bucket in credit
--       form. Operation: t take, p peek, g give back, d take whatever the verdict (a debt; `charge:
--       always`; buckets then come in form c). Role: r required, q quota, s shadow
--   form w                        forms a and c (bucket.lua says what credits are)
--   +2  cost: hits                +2  need: credits to take or give back
--   +3  limit: hits per window    +3  room: the debt beyond which these do not fit; -1: they never do
--   +4  length_us                 +4  full_us: whole microseconds until a full debt is paid
--   +5  cap: the highest count    +5  rate: credits per microsecond (c only)
--       (if it is not the limit)  +6  full_rest: the rest of a full debt (c only)
--                                 +7  cap: the highest debt in credits (d only)
-- What a check does not need is left out at the end of a stride, or empty.
--
-- State    each counter's, as its algorithm's file says
-- Reply    {now, clamped, then of each check: used (refused: -1 - used), more, and for d: charged;
--          then, of each refusing check of a bucket that other checks of the call changed: its
--          number and the debt that it met, whole microseconds and rest}.
--          Used is the counter after the call: hits counted, or whole microseconds of debt; more:
--          by how many windows the counter is ahead of the clock, or the rest of the debt; charged
--          in hits or credits. Clamped: how many counters were from the far future.
-- Cost     TIME once, one GET per counter, one write per counter that changes

local now, keep = tonumber(ARGV[1]), 86400000
if not now then
  local time = redis.call('TIME')
  now, keep = time[1] * 1000000 + time[2], 0
end
local all_or_nothing, stride, checks = ARGV[2] == 'a', ARGV[3] + 0, #KEYS
local byte = string.byte

-- A counter has one state at work within a call: what is certain (as stored, less give-backs, plus
-- debts) and, once a check of it has passed, what it is if the call is admitted.
--
-- Twelve places per check, all in one table, because tables are what costs here. Of the counter, at
-- its first check: 1, 2 certain; 3, 4 if admitted, else false; 5 the stored count that INCRBY can go
-- on from, else false; 6 it must be written. Of the check: 7 it passes; 8 its counter's places; 9, 10
-- the debt that a refusal met; 11 what a debt was charged for certain, 12 if admitted, else false.
local m = {
  0, 0, false, false, false, false, false, 0, 0, 0, 0, false,
  0, 0, false, false, false, false, false, 0, 0, 0, 0, false,
}
local places = {}
local clamped, refused, quotas, quota_passes = 0, false, false, false

for i = 1, checks do
  local key, at, o = KEYS[i], 3 + (i - 1) * stride, (i - 1) * 12
  local form, op, role = byte(ARGV[at + 1], 1, 3)
  local need, room, full = ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0
  local c, passes = places[key], true
  local new = not c
  if new then
    c, places[key] = o, o
  end

  if form == 119 then -- w
    local cost, limit, length = need, room, full
    local cap = stride > 4 and tonumber(ARGV[at + 5]) or limit
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
  else
    local rate, full_rest = false, 0
    if form == 99 then -- c
      rate, full_rest = ARGV[at + 5] + 0, ARGV[at + 6] + 0
    end
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
      if not admitted or m[c + 1] > full + 1000000 then
        m[c + 1], m[c + 2], m[c + 6] = ahead, rest, true
      end
    end
    if op == 116 then -- t
      -- insert bucket.take
      if passes then m[c + 3], m[c + 4] = ahead, rest end
    elseif op == 103 then -- g
      if need > 0 and (ahead > 0 or rest > 0) then
        local rate = rate or 1
        local rest_back = need % rate
        local ahead_back = (need - rest_back) / rate
        -- insert give_back.lower
        m[c + 1], m[c + 2], m[c + 6] = ahead, rest, true
      end
    else
      passes = ahead * (rate or 1) + rest <= room
      if op == 100 then -- d
        m[o + 12] = false
        for side = 0, 1 do
          local ahead, rest = m[c + 1 + 2 * side], m[c + 2 + 2 * side]
          if ahead then
            if rest >= rate then ahead, rest = ahead + 1, 0 end
            local credits = ARGV[at + 7] - ahead * rate - rest
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
  end

  m[o + 7], m[o + 8] = passes, c
  if role == 114 then -- r
    refused = refused or not passes
  elseif role == 113 then -- q
    quotas, quota_passes = true, quota_passes or passes
  end
end

local charges = not all_or_nothing or not refused and (quota_passes or not quotas)
for i = 1, checks do
  local o = (i - 1) * 12
  local admitted = charges and m[o + 3]
  if m[o + 8] == o and (admitted or m[o + 6]) then
    local key, at = KEYS[i], 3 + (i - 1) * stride
    if byte(ARGV[at + 1]) == 119 then
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

local reply, r = { now, clamped, 0, 0, 0, 0 }, 2
for i = 1, checks do
  local o, at = (i - 1) * 12, 3 + (i - 1) * stride
  local form, op = byte(ARGV[at + 1], 1, 2)
  local c = m[o + 8]
  local used, more = m[c + 1], m[c + 2]
  if form == 119 then
    more = more * ARGV[at + 4] > now and 1 or 0
  end
  reply[r + 1], reply[r + 2], r = m[o + 7] and used or -1 - used, more, r + 2
  if op == 100 then
    reply[r + 1], r = charges and m[o + 12] or m[o + 11], r + 1
  end
end
for i = 1, checks do
  local o = (i - 1) * 12
  local c = m[o + 8]
  if not m[o + 7] and byte(ARGV[4 + (i - 1) * stride]) ~= 119 then
    if m[o + 9] ~= m[c + 1] or m[o + 10] ~= m[c + 2] then
      reply[r + 1], reply[r + 2], reply[r + 3], r = i, m[o + 9], m[o + 10], r + 3
    end
  end
end
reply[r + 1] = nil
return reply
