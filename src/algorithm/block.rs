//! Block of a key after a refusal (`block` in the policy): until its end, every check of the counter is
//! refused. `N` is the length of the limit's blocks.
//!
//! ```text
//! begins   a check that may block is refused, and no block is in force: start = now, end = now + N
//! ends     at min(end, start + N): a lowered N applies, a raised one is for new blocks
//! ```
//!
//! Asking does not prolong a block. While it is in force, nothing is charged but hits that are charged
//! in any case. A block that starts more than a second in the future was written by a clock that ran
//! ahead, and is not in force.
//!
//! Not here: which checks begin one ([`Check::starts_block`]), where it is stored (`store`).

use super::bucket::EXCESS_DEBT_MAX;
use crate::domain::{Check, Hits, Micros, Op, Outcome, Verdict};

/// Stored state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Time at which the block began.
    pub start: Micros,
    /// Time at which it ends, by the length that the limit's blocks had then.
    pub end: Micros,
}

impl State {
    /// Returns a block of this length that begins at `now`.
    pub fn begin(length: Micros, now: Micros) -> State {
        State { start: now, end: now.saturating_add(length) }
    }
}

/// Returns the time until the block of a check's key ends; zero if none is in force. `stored` is the
/// state of the block.
pub fn left(stored: Option<State>, check: &Check<'_>, now: Micros) -> Micros {
    match (stored, check.limit.block_length()) {
        (Some(State { start, end }), Some(length))
            if start <= now.saturating_add(EXCESS_DEBT_MAX) =>
        {
            start.saturating_add(length).min(end).saturating_sub(now)
        }
        _ => Micros::ZERO,
    }
}

/// Returns the block that a check begins if none is in force: if it was refused and may block.
pub fn begun(check: &Check<'_>, outcome: &Outcome, now: Micros) -> Option<State> {
    let begins = outcome.verdict == Verdict::Refuse && check.starts_block();
    let length = check.limit.block_length().filter(|_| begins)?;
    Some(State::begin(length, now))
}

/// Returns the operation that a check performs while its key is blocked: a peek, unless the hits are
/// charged in any case.
pub fn op_while_blocked(check: &Check<'_>) -> Op {
    match check.op {
        Op::Hold { .. } => Op::Peek { hits: check.hits_needed() },
        Op::Take { .. } if !check.charges_always() => Op::Peek { hits: check.hits_needed() },
        op => op,
    }
}

/// Returns the outcome of a check whose key is blocked for `left` after the call; zero if it is not.
pub fn outcome_with_block(outcome: Outcome, check: &Check<'_>, left: Micros) -> Outcome {
    if left == Micros::ZERO {
        return outcome;
    }
    let is_in_vain = check.hits_needed() > check.limit.capacity();
    let retry_after = match outcome.verdict {
        Verdict::Refuse if !is_in_vain => Some(outcome.retry_after.unwrap_or_default().max(left)),
        Verdict::Refuse | Verdict::Pass => None,
    };
    let reset_after = outcome.reset_after.max(left);
    Outcome { available: Hits::ZERO, retry_after, reset_after, ..outcome }
}
