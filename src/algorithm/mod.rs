//! The arithmetic of each algorithm, as pure functions: (state, limit, operation, now) → (outcome,
//! state).
//!
//! Integers only; nothing here can fail, panic, wait or look at a clock. The Lua scripts compute
//! the same formulas in doubles, which is why every product stays below 2^53 (the policy refuses
//! limits whose products would not). `tests/vectors/` holds both to the same answers.
//!
//! | algorithm | passes iff | the most it admits in any interval of one window | retry after |
//! |---|---|---|---|
//! | [`fixed_window`] | count + c ≤ L in the present window | 2 L, at a boundary | the window's end |
//! | [`bucket`] | debt + c ≤ B | B + r · W | until enough has refilled |
//!
//! Not here: which counters a call touches and whether it is admitted (`store`), what limits mean
//! (`policy`).
//!
//! To add an algorithm: a file with `State`, `apply`, `give_back` and `expires_at`, and an arm in
//! each `match` below. A state larger than 16 bytes is boxed, so that [`State`] keeps its size.

use crate::domain::{Counting, Limit, Micros, Op, Outcome, Taken};

pub mod bucket;
pub mod fixed_window;

/// What is stored of one counter.
///
/// 24 bytes: the memory store keeps ten million of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Hits of one window.
    FixedWindow(fixed_window::State),
    /// A bucket's debt.
    Bucket(bucket::State),
}

const _: () = assert!(size_of::<State>() <= 24, "an entry of the memory store is 64 bytes at most");

/// What one operation on one counter answers, and what it leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<S = State> {
    /// The answer. `available` and `reset_after` are those of the counter after the operation.
    pub outcome: Outcome,
    /// What to store; `None` where nothing is to be written.
    ///
    /// A refusal and a peek write only the clamp of a state from the far future: unwritten, it
    /// would be clamped anew at every look and the counter would stay frozen.
    pub write: Option<S>,
    /// The state was of a later time than `now`, by more than the algorithm explains: the clock
    /// stepped back (or, for a bucket, its capacity was lowered).
    pub stepped_back: bool,
}

impl<S> Step<S> {
    fn map(self, wrap: impl FnOnce(S) -> State) -> Step {
        let Step { outcome, write, stepped_back } = self;
        Step { outcome, write: write.map(wrap), stepped_back }
    }
}

/// Applies an operation to a counter, `None` being one that does not exist.
///
/// A state of another algorithm counts as absent (the algorithm is part of a counter's key, so this
/// does not happen). A `Take` of zero hits is a peek.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::algorithm::apply;
/// use tidegate::domain::*;
///
/// let counting = Counting::Bucket(Bucket {
///     burst: Hits(3),
///     refill: Refill::Arrival { emission: Micros(100_000) },
/// });
/// let rate = Rate { requests_per_unit: 10, unit: Some(Unit::Second), unit_multiplier: 1 };
/// let (charge, on_store_failure) = Default::default();
/// let limit = Limit { counting, rate, charge, on_store_failure, family: 1 };
/// let now = Micros(1_763_668_800_000_000);
///
/// let taken = apply(None, &limit, Op::Take { cost: Hits(3) }, now);
/// assert_eq!(taken.outcome.available, Hits(0));
/// let refused = apply(taken.write.as_ref(), &limit, Op::Take { cost: Hits(1) }, now);
/// assert_eq!(refused.outcome.retry_after, Some(Micros(100_000)));
/// assert_eq!(refused.write, None);
/// ```
pub fn apply(state: Option<&State>, limit: &Limit, op: Op, now: Micros) -> Step {
    match &limit.counting {
        Counting::FixedWindow(window) => {
            let state = match state {
                Some(State::FixedWindow(state)) => Some(*state),
                _ => None,
            };
            fixed_window::apply(state, window, limit.charge, op, now).map(State::FixedWindow)
        }
        Counting::Bucket(bucket) => {
            let state = match state {
                Some(State::Bucket(state)) => Some(*state),
                _ => None,
            };
            bucket::apply(state, bucket, limit.charge, op, now).map(State::Bucket)
        }
    }
}

/// Returns what a receipt says to the counter it was taken from (the store's contract, 16).
///
/// `limit` is the receipt's. The state to store, or `None` where the receipt has no effect any
/// more. The same receipt must not be given back twice.
pub fn give_back(state: &State, limit: &Limit, taken: &Taken, now: Micros) -> Option<State> {
    match (&limit.counting, state) {
        (Counting::FixedWindow(_), State::FixedWindow(state)) => {
            fixed_window::give_back(*state, taken).map(State::FixedWindow)
        }
        (Counting::Bucket(bucket), State::Bucket(state)) => {
            bucket::give_back(*state, bucket, limit.charge, taken, now).map(State::Bucket)
        }
        (Counting::FixedWindow(_) | Counting::Bucket(_), _) => None,
    }
}

/// From when on an absent counter means the same as this state, under this limit and under any
/// that may take its place (a window's length is in the counter's key; a bucket's debt is time).
pub fn expires_at(state: &State, limit: &Limit) -> Micros {
    match (&limit.counting, state) {
        (Counting::FixedWindow(window), State::FixedWindow(state)) => {
            fixed_window::expires_at(*state, window)
        }
        (Counting::FixedWindow(_), _) => Micros::ZERO,
        (Counting::Bucket(_), State::Bucket(state)) => bucket::expires_at(*state),
        (Counting::Bucket(_), _) => Micros::ZERO,
    }
}
