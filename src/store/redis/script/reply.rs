//! Decodes script replies into outcomes.
//!
//! `apply.lua` returns the numbers of each outcome. A fast-path script returns the counter's state
//! before the call, the verdict, and the time, from which [`algorithm::apply`] computes the
//! outcome. Decoding returns a [`ReplyError`] for a reply that no script can send, and for a
//! verdict that contradicts the state.
//!
//! Not here: the arguments (`arguments`), error replies (`client`), what an outcome means
//! (`decide`).

use redis::Value;
use smallvec::SmallVec;

use super::selection::{FastPath, ScriptSelection, is_credit_bucket};
use crate::algorithm::{self, State, bucket, fixed_window, sliding_window};
use crate::domain::{
    Accounting, Admission, Algorithm, ChargeRecord, Check, FixedWindow, Hits, Holder, Micros, Op,
    Outcome, SlidingWindow, Verdict,
};

/// Reply of `apply.lua` if the server's clock is outside the calendar windows in the call.
const NO_WINDOW_REPLY: [Value; 1] = [Value::Int(-1)];

/// Reply of a node script if its cluster node does not hold all keys. In that case, the script has
/// written nothing.
pub const NOT_HERE: &[u8] = b"not here";

/// Returns whether a node script replied [`NOT_HERE`].
pub fn is_not_here(reply: &Value) -> bool {
    matches!(reply, Value::BulkString(text) if text == NOT_HERE)
}

/// Largest hit count that a reply for a fixed window can contain, because scripts store it in at
/// most ten decimal digits.
const STORED_COUNT_MAX: u64 = 9_999_999_999;

/// Number of integers per check in a reply of `apply.lua`.
const NUMBERS_PER_OUTCOME: usize = 6;
/// Number of integers per check in a reply of `apply.lua` that decides only some of the checks of
/// an all-or-nothing call.
const NUMBERS_PER_OUTCOME_AND_STATUS: usize = NUMBERS_PER_OUTCOME + 2;

/// Reason why a script reply cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// The server or the script replied with an error.
    Error,
    /// The reply has a different RESP type than the script returns.
    Shape,
    /// The reply has too few or too many numbers for the checks.
    Length,
    /// The reply contains a value that is not a number, or a number that no script returns.
    Number,
    /// The server's clock is outside the calendar windows that the call contained. No counter has
    /// changed.
    NoWindow,
}

/// Decoded reply of a script that decides a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    /// One outcome per check, in the order of the checks.
    pub outcomes: Vec<Outcome>,
    /// Number of counters that were clamped because their state was too far in the future. Sliding
    /// logs and leases are clamped to the current time, other counters to zero available hits.
    /// Either the clock stepped back, a bucket's limit was lowered, or the state was corrupt.
    pub clamped: u64,
    /// Status of each check's counter without the call's charges, in the order of the checks.
    /// Empty unless the script call decides only some of the checks of an all-or-nothing call.
    pub uncharged: Vec<CounterStatus>,
}

/// Available hits and reset time of a counter, as in an [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterStatus {
    /// Number of hits available, rounded down: how many single-hit checks would still pass.
    pub available: Hits,
    /// Time until the full limit is available again, rounded up.
    pub reset_after: Micros,
}

impl ScriptReply {
    /// Decodes the reply to a call encoded by
    /// [`Encoder::encode_call`](super::arguments::Encoder::encode_call) for the same checks.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplyError`] if no script can send this reply for these checks.
    pub fn decode(
        reply: &Value,
        checks: &[Check<'_>],
        accounting: Accounting,
    ) -> Result<ScriptReply, ReplyError> {
        ScriptReply::decode_reply(reply, checks, accounting, false)
    }

    /// Decodes the reply to a call encoded by
    /// [`Encoder::encode_part`](super::arguments::Encoder::encode_part) for the same checks.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplyError`] if no script can send this reply for these checks.
    pub fn decode_part(reply: &Value, checks: &[Check<'_>]) -> Result<ScriptReply, ReplyError> {
        ScriptReply::decode_reply(reply, checks, Accounting::AllOrNothing, true)
    }

    fn decode_reply(
        reply: &Value,
        checks: &[Check<'_>],
        accounting: Accounting,
        is_part: bool,
    ) -> Result<ScriptReply, ReplyError> {
        match (ScriptSelection::for_checks(checks), reply, checks) {
            (_, Value::ServerError(_), _) => Err(ReplyError::Error),
            (ScriptSelection::Single(path), Value::BulkString(line), [check]) => {
                decode_single(line, check, path, is_part)
            }
            (ScriptSelection::Multi, Value::Array(numbers), _) => {
                decode_multi(numbers, checks, accounting, is_part)
            }
            (ScriptSelection::Apply, Value::Array(numbers), _) if *numbers == NO_WINDOW_REPLY => {
                Err(ReplyError::NoWindow)
            }
            (ScriptSelection::Apply, Value::Array(numbers), _) => {
                decode_apply(numbers, checks, is_part)
            }
            (
                ScriptSelection::Single(_) | ScriptSelection::Multi | ScriptSelection::Apply,
                _,
                _,
            ) => Err(ReplyError::Shape),
        }
    }
}

/// Decodes the reply of a `single_*.lua` script: one line of text with the verdict, the server's
/// time, and the counter's state.
fn decode_single(
    line: &[u8],
    check: &Check<'_>,
    path: FastPath<'_>,
    is_part: bool,
) -> Result<ScriptReply, ReplyError> {
    let mut numbers = SmallVec::<[i64; 8]>::new();
    for word in line.split(|byte| *byte == b' ') {
        let number = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
        numbers.push(number.ok_or(ReplyError::Number)?);
        if numbers.len() > 5 {
            return Err(ReplyError::Length);
        }
    }
    let [first, now, rest @ ..] = numbers.as_slice() else { return Err(ReplyError::Length) };
    let now = parse_micros(*now)?;
    let (passes, used) = split_verdict(*first)?;
    let (state, clamped) = match (path, rest) {
        (FastPath::FixedWindow(window, _), []) => (window_state(window, used, None, now)?, 0),
        (FastPath::FixedWindow(window, _), [start, clamped]) => {
            (window_state(window, used, Some(*start), now)?, *clamped)
        }
        (FastPath::Bucket(_), []) if !is_credit_bucket(check) => (bucket_state(used, 0, now)?, 0),
        (FastPath::Bucket(_), [rem]) => (bucket_state(used, *rem, now)?, 0),
        (FastPath::Bucket(_), [rem, clamped]) => (bucket_state(used, *rem, now)?, *clamped),
        (FastPath::SlidingWindow(window), [prev]) => {
            (sliding_state(window, used, *prev, None, now)?, 0)
        }
        (FastPath::SlidingWindow(window), [prev, start, clamped]) => {
            (sliding_state(window, used, *prev, Some(*start), now)?, *clamped)
        }
        (FastPath::FixedWindow(..) | FastPath::Bucket(_) | FastPath::SlidingWindow(_), _) => {
            return Err(ReplyError::Length);
        }
    };
    let outcome = outcome_from_state(&state, check, passes, now)?;
    let clamped = u64::try_from(clamped).map_err(|_| ReplyError::Number)?;
    let uncharged =
        is_part.then(|| uncharged_status(Some(&state), check, &outcome, now)).into_iter().collect();
    Ok(ScriptReply { outcomes: vec![outcome], clamped, uncharged })
}

/// Decodes the reply of `multi_check.lua`, which contains the verdict and the counter's state for
/// each check.
fn decode_multi(
    reply: &[Value],
    checks: &[Check<'_>],
    accounting: Accounting,
    is_part: bool,
) -> Result<ScriptReply, ReplyError> {
    let mut numbers = parse_numbers(reply);
    let (now, clamped) =
        (parse_micros(next_number(&mut numbers)?)?, parse_count(next_number(&mut numbers)?)?);
    let mut found = SmallVec::<[(usize, bool, State); 8]>::new();
    for at in ScriptSelection::Multi.order(checks) {
        let (passes, used) = split_verdict(next_number(&mut numbers)?)?;
        let state = match FastPath::for_check(&checks[at]) {
            Some(FastPath::FixedWindow(window, _)) => window_state(window, used, None, now)?,
            Some(FastPath::Bucket(_)) => {
                let rem =
                    if is_credit_bucket(&checks[at]) { next_number(&mut numbers)? } else { 0 };
                bucket_state(used, rem, now)?
            }
            Some(FastPath::SlidingWindow(_)) | None => return Err(ReplyError::Shape),
        };
        found.push((at, passes, state));
    }
    while let Some(place) = numbers.next().transpose()? {
        let place = usize::try_from(place).ok().and_then(|place| place.checked_sub(1));
        let (at, _, state) =
            place.and_then(|place| found.get_mut(place)).ok_or(ReplyError::Number)?;
        let (Some(FastPath::FixedWindow(window, _)), State::FixedWindow(counted)) =
            (FastPath::for_check(&checks[*at]), &state)
        else {
            return Err(ReplyError::Number);
        };
        let used = u64::from(counted.count);
        *state = window_state(window, used, Some(next_number(&mut numbers)?), now)?;
    }
    found.sort_unstable_by_key(|(at, ..)| *at);
    let mut outcomes = Vec::with_capacity(checks.len());
    for (check, (_, passes, state)) in checks.iter().zip(&found) {
        outcomes.push(outcome_from_state(state, check, *passes, now)?);
    }
    let before = || found.iter().map(|(.., state)| Some(state));
    undo_rejected_charges(&mut outcomes, checks, accounting, before(), now);
    let parts = if is_part { checks } else { &[] };
    let uncharged = uncharged_statuses(parts, before(), &outcomes, now);
    Ok(ScriptReply { outcomes, clamped, uncharged })
}

/// Removes the charges from the outcomes of a rejected all-or-nothing call. `before` are the
/// counters' states before the call. Returns whether the call's charges stand.
pub(super) fn undo_rejected_charges<'a>(
    outcomes: &mut [Outcome],
    checks: &[Check<'_>],
    accounting: Accounting,
    before: impl Iterator<Item = Option<&'a State>>,
    now: Micros,
) -> bool {
    let verdicts = outcomes.iter().map(|outcome| Some(outcome.verdict));
    let admission: Admission = checks.iter().map(|check| check.role).zip(verdicts).collect();
    if accounting == Accounting::Independent || admission.is_admitted() {
        return true;
    }
    for ((check, state), outcome) in checks.iter().zip(before).zip(outcomes) {
        if outcome.taken.is_some() && !check.charges_always() {
            let CounterStatus { available, reset_after } =
                uncharged_status(state, check, outcome, now);
            let (charged, taken) = (Hits::ZERO, None);
            *outcome = Outcome { charged, taken, available, reset_after, ..*outcome };
        }
    }
    false
}

/// Returns the status that the counter of each check will have if the call is rejected. `before` are
/// the counters' states before the call.
pub(super) fn uncharged_statuses<'a>(
    checks: &[Check<'_>],
    before: impl Iterator<Item = Option<&'a State>>,
    outcomes: &[Outcome],
    now: Micros,
) -> Vec<CounterStatus> {
    let each = checks.iter().zip(before).zip(outcomes);
    each.map(|((check, state), outcome)| uncharged_status(state, check, outcome, now)).collect()
}

/// Returns the status that a check's counter will have if the call is rejected. `state` is the
/// counter's state before the call.
fn uncharged_status(
    state: Option<&State>,
    check: &Check<'_>,
    outcome: &Outcome,
    now: Micros,
) -> CounterStatus {
    let Outcome { available, reset_after, .. } = match check.applies_when_rejected() {
        true => *outcome,
        false => algorithm::apply(state, check.limit, Op::PEEK, now).outcome,
    };
    CounterStatus { available, reset_after }
}

/// Decodes the reply of `apply.lua`, which contains six numbers per check, or eight (`is_part`) if
/// the script decides only some of the checks of an all-or-nothing call.
fn decode_apply(
    reply: &[Value],
    checks: &[Check<'_>],
    is_part: bool,
) -> Result<ScriptReply, ReplyError> {
    let mut numbers = parse_numbers(reply);
    let (now, clamped) =
        (parse_micros(next_number(&mut numbers)?)?, parse_count(next_number(&mut numbers)?)?);
    let mut each = SmallVec::<[(usize, Outcome, Option<CounterStatus>); 8]>::new();
    for at in ScriptSelection::Apply.order(checks) {
        let mut eight = [0; NUMBERS_PER_OUTCOME_AND_STATUS];
        let sent = if is_part { NUMBERS_PER_OUTCOME_AND_STATUS } else { NUMBERS_PER_OUTCOME };
        for number in &mut eight[..sent] {
            *number = next_number(&mut numbers)?;
        }
        let [six @ .., available, reset] = eight;
        let outcome = outcome_from_numbers(six, &checks[at], now)?;
        let (available, reset_after) = (Hits(parse_count(available)?), parse_micros(reset)?);
        if available > checks[at].limit.capacity() {
            return Err(ReplyError::Number);
        }
        each.push((at, outcome, is_part.then_some(CounterStatus { available, reset_after })));
    }
    if numbers.next().is_some() {
        return Err(ReplyError::Length);
    }
    each.sort_unstable_by_key(|(at, ..)| *at);
    let uncharged = each.iter().filter_map(|(.., status)| *status).collect();
    let outcomes = each.into_iter().map(|(_, outcome, _)| outcome).collect();
    Ok(ScriptReply { outcomes, clamped, uncharged })
}

/// Computes a check's outcome from the check's six numbers in a reply of `apply.lua`. Times are in
/// microseconds. The numbers are, in this order:
///
/// - the available hits, or −1 − available hits if the check was refused
/// - the time until the same check would pass, or 0 if it passed or can never pass
/// - the time until reset
/// - the charged hits
/// - the time or the window of the charge
/// - the entry of the charge ([`ChargeRecord::entry`])
fn outcome_from_numbers(
    numbers: [i64; NUMBERS_PER_OUTCOME],
    check: &Check<'_>,
    now: Micros,
) -> Result<Outcome, ReplyError> {
    let [available, wait, reset, charged, since, entry] = numbers;
    let (passes, available) = split_verdict(available)?;
    let (wait, charged, since) =
        (parse_count(wait)?, Hits(parse_count(charged)?), parse_micros(since)?);
    let asked = if check.is_refund() { Hits::ZERO } else { check.cost() };
    // A wrong charge would be reported to callers and refunded later.
    let charges = passes || check.charges_always();
    let plausible = charged <= if charges { asked } else { Hits::ZERO };
    if available > check.limit.capacity().0 || !plausible || passes && wait > 0 {
        return Err(ReplyError::Number);
    }
    let (entry, reset) = (parse_count(entry)?, parse_micros(reset)?);
    let mut hits = charged;
    let (at, window, entry) = match &check.limit.algorithm {
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) => (now, since, 0),
        Algorithm::Concurrency(slots) => {
            let holder = check.holder.map_or(0, |Holder(bits)| bits);
            if charged == Hits::ZERO && entry > 0 {
                // A renewed lease: its former hits and end. The new lease is the newest.
                hits = Hits(entry);
                (now.saturating_add(reset).saturating_sub(slots.lease), since, holder)
            } else {
                (since, Micros::ZERO, holder)
            }
        }
        Algorithm::SlidingLog(_) | Algorithm::Hybrid(_) | Algorithm::Bucket(_) => {
            (since, Micros::ZERO, u128::from(entry))
        }
    };
    Ok(Outcome {
        verdict: if passes { Verdict::Pass } else { Verdict::Refuse },
        charged,
        available: Hits(available),
        retry_after: (wait > 0).then_some(Micros(wait)),
        reset_after: reset,
        taken: (hits > Hits::ZERO).then_some(ChargeRecord { hits, at, window, entry }),
    })
}

/// Computes a check's outcome from the counter's state before the call. Returns an error if a
/// bucket's state is too far in the future, because scripts clamp such states. Also returns an
/// error if the computed verdict differs from the script's.
fn outcome_from_state(
    state: &State,
    check: &Check<'_>,
    passes: bool,
    now: Micros,
) -> Result<Outcome, ReplyError> {
    let step = algorithm::apply(Some(state), check.limit, check.op, now);
    let is_far = step.stepped_back && matches!(state, State::Bucket(_));
    if is_far || (step.outcome.verdict == Verdict::Pass) != passes {
        return Err(ReplyError::Number);
    }
    Ok(step.outcome)
}

/// Returns the state of a fixed window with `used` hits. `start` is the start of the window; `None`
/// means the current window. If the clock has stepped back, the window can be the next one. Returns
/// an error for a window that is neither the current nor the next one, and for a hit count that
/// scripts cannot store.
fn window_state(
    limit: &FixedWindow,
    used: u64,
    start: Option<i64>,
    now: Micros,
) -> Result<State, ReplyError> {
    let current = fixed_window::window_at(&limit.window, now);
    let start = start.map_or(Ok(current.start), parse_micros)?;
    if used > STORED_COUNT_MAX || start != current.start && start != current.end {
        return Err(ReplyError::Number);
    }
    let count = u32::try_from(used).unwrap_or(u32::MAX);
    Ok(State::FixedWindow(fixed_window::State { start, count }))
}

fn bucket_state(ahead: u64, rem: i64, now: Micros) -> Result<State, ReplyError> {
    let tat = Micros(now.0.checked_add(ahead).ok_or(ReplyError::Number)?);
    let rem = u32::try_from(rem).map_err(|_| ReplyError::Number)?;
    Ok(State::Bucket(bucket::State { tat, rem }))
}

fn sliding_state(
    limit: &SlidingWindow,
    cur: u64,
    prev: i64,
    start: Option<i64>,
    now: Micros,
) -> Result<State, ReplyError> {
    let length = limit.length.0.max(1);
    let current = Micros(now.0 - now.0 % length);
    let start = start.map_or(Ok(current), parse_micros)?;
    if start != current && start != current.saturating_add(Micros(length)) {
        return Err(ReplyError::Number);
    }
    let hits = |count: u64| u32::try_from(count).map_err(|_| ReplyError::Number);
    let (prev, cur) = (hits(parse_count(prev)?)?, hits(cur)?);
    Ok(State::SlidingWindow(sliding_window::State { start, prev, cur }))
}

fn parse_numbers(reply: &[Value]) -> impl Iterator<Item = Result<i64, ReplyError>> {
    reply.iter().map(|value| match value {
        Value::Int(number) => Ok(*number),
        _ => Err(ReplyError::Number),
    })
}

fn next_number(
    numbers: &mut impl Iterator<Item = Result<i64, ReplyError>>,
) -> Result<i64, ReplyError> {
    numbers.next().unwrap_or(Err(ReplyError::Length))
}

/// Splits a number from a reply into the verdict (true for a pass) and the value. A refusal is
/// encoded as −1 − value.
fn split_verdict(number: i64) -> Result<(bool, u64), ReplyError> {
    let passes = number >= 0;
    Ok((passes, parse_count(if passes { number } else { -1 - number })?))
}

fn parse_micros(number: i64) -> Result<Micros, ReplyError> {
    parse_count(number).map(Micros)
}

fn parse_count(number: i64) -> Result<u64, ReplyError> {
    u64::try_from(number).map_err(|_| ReplyError::Number)
}
