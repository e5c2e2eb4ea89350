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
//! | [`sliding_window`] | the previous window's share + count + c ≤ L | below 2 L against an adversary, about L for steady traffic | exact |
//! | [`sliding_log`] | hits in the last window + c ≤ L | L, exactly | until enough of the oldest have left |
//! | [`bucket`] | debt + c ≤ B | B + r · W | until enough has refilled |
//! | [`hybrid`] | own share, then the pool above its floor | B + r · W over all classes | until both hold enough |
//! | [`concurrency`] | in flight + c ≤ L | L in flight | until enough leases end |
//!
//! Not here: which counters a call touches and whether it is admitted (`store`), what limits mean
//! (`policy`).
//!
//! To add an algorithm: a file with `State`, `apply`, `refund` and `expires_at`, and an arm in
//! each `match` below. A state larger than 16 bytes is boxed, so that [`State`] keeps its size.

use crate::domain::{Algorithm, ChargeRecord, Holder, Limit, Micros, Op, Outcome};

pub mod bucket;
pub mod concurrency;
pub mod fixed_window;
pub mod hybrid;
pub mod sliding_log;
pub mod sliding_window;

/// What is stored of one counter.
///
/// 24 bytes: the memory store keeps ten million of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Hits of one window.
    FixedWindow(fixed_window::State),
    /// A bucket's debt.
    Bucket(bucket::State),
    /// Hits of two neighbouring windows.
    SlidingWindow(sliding_window::State),
    /// Every take that still counts.
    SlidingLog(Box<sliding_log::State>),
    /// Shares and pool.
    Hybrid(Box<hybrid::State>),
    /// Slots and their leases.
    Concurrency(Box<concurrency::State>),
}

impl State {
    /// Bytes on the heap beside the state itself; 0 for windows and buckets.
    pub fn heap_bytes(&self) -> usize {
        match self {
            State::FixedWindow(_) | State::Bucket(_) | State::SlidingWindow(_) => 0,
            State::SlidingLog(log) => size_of::<sliding_log::State>() + log.heap_bytes(),
            State::Hybrid(classes) => size_of::<hybrid::State>() + classes.heap_bytes(),
            State::Concurrency(slots) => size_of::<concurrency::State>() + slots.heap_bytes(),
        }
    }
}

const _: () = assert!(size_of::<State>() <= 24, "an entry of the memory store is 64 bytes at most");

/// The state, if it is of that algorithm.
macro_rules! state_of {
    ($algorithm:ident, $state:expr) => {
        if let State::$algorithm(state) = $state { Some(state) } else { None }
    };
}

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
/// let algorithm = Algorithm::Bucket(Bucket {
///     burst: Hits(3),
///     refill: Refill::Arrival { emission: Micros(100_000) },
///     floor: Hits(0),
///     leaky: false,
/// });
/// let rate = Rate { requests_per_unit: 10, unit: Some(Unit::Second), unit_multiplier: 1 };
/// let (charge, on_store_failure) = Default::default();
/// let limit = Limit { algorithm, rate, charge, on_store_failure, limit_id: 1 };
/// let now = Micros(1_763_668_800_000_000);
///
/// let taken = apply(None, &limit, Op::Take { cost: Hits(3) }, now);
/// assert_eq!(taken.outcome.available, Hits(0));
/// let refused = apply(taken.write.as_ref(), &limit, Op::Take { cost: Hits(1) }, now);
/// assert_eq!(refused.outcome.retry_after, Some(Micros(100_000)));
/// assert_eq!(refused.write, None);
/// ```
pub fn apply(state: Option<&State>, limit: &Limit, op: Op, now: Micros) -> Step {
    apply_for(state, limit, op, None, now)
}

/// Applies an operation on behalf of a holder of slots; the same as [`apply`] for every limit
/// other than concurrency.
pub fn apply_for(
    state: Option<&State>,
    limit: &Limit,
    op: Op,
    holder: Option<Holder>,
    now: Micros,
) -> Step {
    let charge = limit.charge;
    match &limit.algorithm {
        Algorithm::FixedWindow(window) => fixed_window::apply(
            state.and_then(|state| state_of!(FixedWindow, state)).copied(),
            window,
            charge,
            op,
            now,
        )
        .map(State::FixedWindow),
        Algorithm::SlidingWindow(window) => sliding_window::apply(
            state.and_then(|state| state_of!(SlidingWindow, state)).copied(),
            window,
            charge,
            op,
            now,
        )
        .map(State::SlidingWindow),
        Algorithm::SlidingLog(log) => sliding_log::apply(
            state.and_then(|state| state_of!(SlidingLog, state)).map(|state| &**state),
            log,
            charge,
            op,
            now,
        )
        .map(|state| State::SlidingLog(Box::new(state))),
        Algorithm::Bucket(bucket) => bucket::apply(
            state.and_then(|state| state_of!(Bucket, state)).copied(),
            bucket,
            charge,
            op,
            now,
        )
        .map(State::Bucket),
        Algorithm::Hybrid(classes) => hybrid::apply(
            state.and_then(|state| state_of!(Hybrid, state)).map(|state| &**state),
            classes,
            op,
            now,
        )
        .map(|state| State::Hybrid(Box::new(state))),
        Algorithm::Concurrency(slots) => concurrency::apply(
            state.and_then(|state| state_of!(Concurrency, state)).map(|state| &**state),
            slots,
            op,
            holder,
            now,
        )
        .map(|state| State::Concurrency(Box::new(state))),
    }
}

/// Returns what a receipt says to the counter it was taken from (the store's contract, 16).
///
/// `limit` is the receipt's. The state to store, or `None` where the receipt has no effect any
/// more. The same receipt must not be refunded twice.
pub fn refund(state: &State, limit: &Limit, taken: &ChargeRecord, now: Micros) -> Option<State> {
    match &limit.algorithm {
        Algorithm::FixedWindow(_) => state_of!(FixedWindow, state)
            .and_then(|state| fixed_window::refund(*state, taken))
            .map(State::FixedWindow),
        Algorithm::SlidingWindow(window) => state_of!(SlidingWindow, state)
            .and_then(|state| sliding_window::refund(*state, window, taken))
            .map(State::SlidingWindow),
        Algorithm::SlidingLog(log) => state_of!(SlidingLog, state)
            .and_then(|state| sliding_log::refund(state, log, taken, now))
            .map(|state| State::SlidingLog(Box::new(state))),
        Algorithm::Bucket(bucket) => state_of!(Bucket, state)
            .and_then(|state| bucket::refund(*state, bucket, limit.charge, taken, now))
            .map(State::Bucket),
        Algorithm::Hybrid(classes) => state_of!(Hybrid, state)
            .and_then(|state| hybrid::refund(state, classes, taken, now))
            .map(|state| State::Hybrid(Box::new(state))),
        Algorithm::Concurrency(_) => state_of!(Concurrency, state)
            .and_then(|state| concurrency::refund(state, taken, now))
            .map(|state| State::Concurrency(Box::new(state))),
    }
}

/// From when on an absent counter means the same as this state, under this limit and under any
/// that may take its place (a window's length is in the counter's key; a bucket's debt is time).
pub fn expires_at(state: &State, limit: &Limit) -> Micros {
    let expires_at = match &limit.algorithm {
        Algorithm::FixedWindow(window) => {
            state_of!(FixedWindow, state).map(|state| fixed_window::expires_at(*state, window))
        }
        Algorithm::SlidingWindow(window) => {
            state_of!(SlidingWindow, state).map(|state| sliding_window::expires_at(*state, window))
        }
        Algorithm::SlidingLog(log) => {
            state_of!(SlidingLog, state).map(|state| sliding_log::expires_at(state, log))
        }
        Algorithm::Bucket(_) => state_of!(Bucket, state).map(|state| bucket::expires_at(*state)),
        Algorithm::Hybrid(classes) => {
            state_of!(Hybrid, state).map(|state| hybrid::expires_at(state, classes))
        }
        Algorithm::Concurrency(_) => {
            state_of!(Concurrency, state).map(|state| concurrency::expires_at(state))
        }
    };
    expires_at.unwrap_or(Micros::ZERO)
}
