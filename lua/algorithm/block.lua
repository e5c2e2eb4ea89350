#!lua
-- Block (letter x): after a refusal, refuses every check of a counter until the block ends. It has a key of its
-- own next to the counter's. Limits cannot choose this algorithm. Instead, a check of the block, which always
-- passes, comes before each check of a counter whose limit has `block`. algorithms.lua describes the functions.
--
-- limit      +1  length: microseconds from a block's start to its end
-- State      start and end in microseconds, separated by a colon
-- Expiry     when the block ends
--
-- Numbers are doubles. They are exact here, because all are below 2^53. Never tostring a timestamp: it rounds.
local now, extra_ms = ...

local function parse(value)
  local start, stop = string.match(value or '', '^(%d+):(%d+)$')
  return start and { start = tonumber(start), count = tonumber(stop) }
end

local function load(key)
  local value, err = loadfile('read_string.lua')(key)
  return parse(value), err
end

-- Returns the microseconds until the block ends, 0 if none is in force. A block that starts more than a
-- second in the future was written by a clock that ran ahead.
local function left(state, limit, at)
  if not state or state.start > now + 1000000 then
    return 0
  end
  return math.max(math.min(state.count, state.start + limit[at + 1]) - now, 0)
end

local function begin(limit, at)
  return { start = now, count = now + limit[at + 1] }
end

-- Applies an operation to the state of the block. A refund lifts the block.
local function step(state, op)
  return true, 0, 0, 0, 0, op == 'refund' and state and { start = 0, count = 0 } or nil, false
end

local function report(state, limit, at)
  return 0, left(state, limit, at)
end

local function save(key, state)
  local text = string.format('%d:%d', state.start, state.count)
  redis.call('SET', key, text, 'PX', loadfile('ttl.lua')(state.count - now, extra_ms))
end

return { parse = parse, load = load, left = left, begin = begin, step = step, report = report, save = save }
