//! Decodes script replies into outcomes.
//!
//! `decide_call.lua` returns the numbers of each outcome, and `decide.lua` the counters' states, which
//! `replay` turns into outcomes. Decoding returns a [`ReplyError`] for a reply that no script can
//! send.
//!
//! Not here: the arguments (`arguments`), error replies (`client`), what an outcome means
//! (`decide`).

use redis::Value;
use smallvec::SmallVec;

use super::arguments::{block_op, refunds_first};
use super::msgpack::{Unpacked, UnpackedItem};
use crate::algorithm::block::outcome_with_block;
use crate::algorithm::{self, State};
use crate::domain::{
    Accounting, Admission, Algorithm, ChargeRecord, Check, Hits, Holder, Micros, Op, Outcome,
    Verdict,
};

/// Reply of `decide_call.lua` if the server's clock is outside the calendar windows in the call.
pub(super) const NO_WINDOW_REPLY: [Value; 1] = [Value::Int(-1)];

/// Reply of a script without KEYS if its cluster node does not hold all keys, or the first item of it.
/// The script has then written nothing.
pub const NOT_HERE: &[u8] = b"not here";

/// Returns whether a script replied [`NOT_HERE`].
pub fn is_not_here(reply: &Value) -> bool {
    let Value::BulkString(text) = reply else { return false };
    let is_first =
        |mut items: Unpacked<'_>| items.next_item() == Some(UnpackedItem::String(NOT_HERE));
    text == NOT_HERE || Unpacked::array(text).is_some_and(is_first)
}

/// Number of integers per check in a reply of `decide_call.lua`.
const NUMBERS_PER_OUTCOME: usize = 6;
/// Number of integers per check in a reply of `decide_call.lua` that decides only some of the checks of
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
    /// The server refused to write some of the charges.
    PartlyWritten,
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
    /// Whether the script counted more or fewer checks that passed than the outcomes computed from its
    /// states. Redis has charged what the script decided, so the outcomes follow the script.
    pub disagrees: bool,
}

/// Available hits and reset time of a counter, as in an [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterStatus {
    /// Number of hits available, rounded down: how many single-hit checks would still pass.
    pub available: Hits,
    /// Time until the full limit is available again, rounded up.
    pub reset_after: Micros,
}

impl CounterStatus {
    /// Returns the status of a counter whose key is blocked for `left`; zero if it is not.
    pub(super) fn with_block(self, left: Micros) -> CounterStatus {
        let available = if left > Micros::ZERO { Hits::ZERO } else { self.available };
        CounterStatus { available, reset_after: self.reset_after.max(left) }
    }
}

/// Removes the charges from the outcomes of a rejected all-or-nothing call. `before` are the
/// counters' states before the call. Returns whether the call's charges stand.
pub(super) fn undo_rejected_charges(
    outcomes: &mut [Outcome],
    checks: &[Check<'_>],
    accounting: Accounting,
    before: &[Option<State>],
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
                uncharged_status(state.as_ref(), check, outcome, now);
            let (charged, taken) = (Hits::ZERO, None);
            *outcome = Outcome { charged, taken, available, reset_after, ..*outcome };
        }
    }
    false
}

/// Returns the status that a check's counter will have if the call is rejected. `state` is the
/// counter's state before the call.
pub(super) fn uncharged_status(
    state: Option<&State>,
    check: &Check<'_>,
    outcome: &Outcome,
    now: Micros,
) -> CounterStatus {
    let Outcome { available, reset_after, .. } =
        match check.applies_when_rejected(Accounting::AllOrNothing) {
            true => *outcome,
            false => algorithm::apply(state, check.limit, Op::PEEK, now).outcome,
        };
    CounterStatus { available, reset_after }
}

/// Decodes the reply of `decide_call.lua`, which contains six numbers per check, or eight (`is_part`) if
/// the script decides only some of the checks of an all-or-nothing call.
pub(super) fn decode_apply(
    reply: &[Value],
    checks: &[Check<'_>],
    is_part: bool,
) -> Result<ScriptReply, ReplyError> {
    let [now, clamped, rest @ ..] = reply else { return Err(ReplyError::Length) };
    let (now, clamped) = (parse_micros(parse_number(now)?)?, parse_count(parse_number(clamped)?)?);
    let sent = if is_part { NUMBERS_PER_OUTCOME_AND_STATUS } else { NUMBERS_PER_OUTCOME };
    if rest.len() != sent * (checks.len() + checks.iter().filter_map(block_op).count()) {
        return Err(ReplyError::Length);
    }
    let mut lists = rest.chunks_exact(sent);
    let mut next_numbers = || -> Result<_, ReplyError> {
        let mut eight = [0; NUMBERS_PER_OUTCOME_AND_STATUS];
        for (number, value) in eight.iter_mut().zip(lists.next().unwrap_or_default()) {
            *number = parse_number(value)?;
        }
        Ok(eight)
    };
    let mut each = SmallVec::<[(usize, Outcome, Option<CounterStatus>); 8]>::new();
    for at in refunds_first(checks) {
        let block = block_op(&checks[at]).map(|_| next_numbers()).transpose()?;
        let [six @ .., available, reset] = next_numbers()?;
        let outcome = outcome_from_numbers(six, &checks[at], now)?;
        let left = match block {
            Some([_, _, left, ..]) if checks[at].reads_block() => parse_micros(left)?,
            Some(_) | None => Micros::ZERO,
        };
        let outcome = outcome_with_block(outcome, &checks[at], left);
        let (available, reset_after) = (Hits(parse_count(available)?), parse_micros(reset)?);
        if available > checks[at].limit.capacity() {
            return Err(ReplyError::Number);
        }
        let status = CounterStatus { available, reset_after }.with_block(left);
        each.push((at, outcome, is_part.then_some(status)));
    }
    each.sort_unstable_by_key(|(at, ..)| *at);
    let uncharged = each.iter().filter_map(|(.., status)| *status).collect();
    let outcomes = each.into_iter().map(|(_, outcome, _)| outcome).collect();
    Ok(ScriptReply { outcomes, clamped, uncharged, disagrees: false })
}

/// Computes a check's outcome from the check's six numbers in a reply of `decide_call.lua`. Times are in
/// microseconds. The numbers are, in this order:
///
/// - the available hits, or −1 − available hits if the check was refused
/// - the time until the same check would pass, or 0 if it passed or can never pass
/// - the time until reset
/// - the charged hits
/// - the time or the window of the charge
/// - the entry of the charge ([`ChargeRecord::entry`]), or the hits held, for a peek on a limit with
///   `reserve`
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
    let verdict = if passes { Verdict::Pass } else { Verdict::Refuse };
    let retry_after = (wait > 0).then_some(Micros(wait));
    let is_peek = check.cost() == Hits::ZERO && !check.comes_first();
    let held = if is_peek && check.limit.reserve.is_some() { Hits(entry) } else { Hits::ZERO };
    let outcome = Outcome {
        held,
        retry_after,
        reset_after: reset,
        verdict,
        ..Outcome::pass(Hits(available))
    };
    if let Op::Hold { ttl_secs, .. } = check.op {
        // The number of hits charged is that of hits held, and the others are of the former hold.
        let at = now.saturating_add(Micros::from_secs(ttl_secs.into()));
        let (hits, id) = (Hits(entry), check.holder.map_or(0, |Holder(bits)| bits));
        let held = ChargeRecord { hits, at, window: since, entry: id };
        return Ok(Outcome { taken: (charged > Hits::ZERO).then_some(held), ..outcome });
    }
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
    let taken = (hits > Hits::ZERO).then_some(ChargeRecord { hits, at, window, entry });
    Ok(Outcome { charged, taken, ..outcome })
}

fn parse_number(value: &Value) -> Result<i64, ReplyError> {
    if let Value::Int(number) = value { Ok(*number) } else { Err(ReplyError::Number) }
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
