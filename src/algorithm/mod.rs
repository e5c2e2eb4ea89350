//! Arithmetic of each algorithm, as pure functions: (state, limit, operation, now) → (outcome,
//! state).
//!
//! All arithmetic is integer. No function fails, panics, waits, or reads a clock. The Lua scripts
//! compute the same formulas in doubles, so every product must stay below 2^53; the policy compiler
//! rejects limits that would exceed it. `tests/vectors/` checks that Rust and Lua give the same
//! results.
//!
//! Notation: `c` is the cost in hits, `L` the limit, `B` the burst, `r` the refill rate, and `W`
//! the window's length.
//!
//! | algorithm | passes iff | maximum admitted in any interval of length W | `retry_after` |
//! |---|---|---|---|
//! | [`fixed_window`] | count + c ≤ L in the current window | 2 L, across a boundary | the window's end |
//! | [`sliding_window`] | weighted previous count + count + c ≤ L | below 2 L against an adversary, about L for steady traffic | exact |
//! | [`sliding_log`] | (hits in the last W) + c ≤ L | exactly L | until enough of the oldest hits expire |
//! | [`bucket`] | debt + c ≤ B | B + r · W | until enough has refilled |
//! | [`hybrid`] | the class's own bucket covers c, or the pool covers the rest and holds at least the class's floor before each hit that uses it | B + r · W over all classes | until the own bucket and the pool together suffice |
//! | [`concurrency`] | in flight + c ≤ L | L in flight | until enough leases end |
//! | [`budget`] | its window or bucket passes held + c | that of its window or bucket | until enough has refilled or enough holds have ended |
//!
//! Not here: selecting the counters of a call (`policy`), admission of the whole call (`store`).
//!
//! To add an algorithm, write a file with `State`, `apply`, `refund` and `expires_at`, and fix the
//! errors that the compiler then reports. Box a state larger than 16 bytes to keep the size of
//! [`State`].

use crate::domain::{Algorithm, Charge, ChargeRecord, Holder, Limit, Micros, Op};

pub mod block;
pub mod bucket;
pub mod budget;
pub mod concurrency;
pub mod fixed_window;
pub mod hybrid;
pub(crate) mod hybrid_credits;
pub mod sliding_log;
pub mod sliding_window;
mod step;

pub use step::{CounterOp, Step};

/// Stored state of one counter. It is kept to 24 bytes, because the memory store may hold ten
/// million counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Hits counted in one fixed window.
    FixedWindow(fixed_window::State),
    /// Debt of a token bucket or leaky bucket.
    Bucket(bucket::State),
    /// Hits counted in the current and the previous window.
    SlidingWindow(sliding_window::State),
    /// Time and hits of each recent charge.
    SlidingLog(Box<sliding_log::State>),
    /// Credits in the bucket of each consumer class, and in the pool that the classes share.
    Hybrid(Box<hybrid::State>),
    /// Lease of each slot holder: the number of slots, and the time at which the lease ends.
    Concurrency(Box<concurrency::State>),
    /// Block of a counter's key, which is stored next to the counter.
    Block(block::State),
    /// State of a window or bucket with holds. Without any, the state is that of the window or bucket.
    Budget(Box<budget::State>),
}

impl State {
    /// Returns the heap memory used by the state, in bytes; 0 for fixed windows, sliding windows,
    /// buckets, and blocks.
    pub fn heap_bytes(&self) -> usize {
        match self {
            State::FixedWindow(_)
            | State::Bucket(_)
            | State::SlidingWindow(_)
            | State::Block(_) => 0,
            State::SlidingLog(log) => size_of::<sliding_log::State>() + log.heap_bytes(),
            State::Hybrid(classes) => size_of::<hybrid::State>() + classes.heap_bytes(),
            State::Concurrency(slots) => size_of::<concurrency::State>() + slots.heap_bytes(),
            State::Budget(budget) => size_of::<budget::State>() + budget.heap_bytes(),
        }
    }

    // Accessors for the state of each algorithm. They return `None` if the state belongs to another
    // algorithm.

    fn as_fixed_window(&self) -> Option<fixed_window::State> {
        if let State::FixedWindow(state) = self.used()? { Some(*state) } else { None }
    }

    /// Returns the state without holds; `None` if nothing but holds is stored.
    fn used(&self) -> Option<&State> {
        if let State::Budget(budget) = self { budget.used() } else { Some(self) }
    }

    /// Returns the state of a block; `None` of a counter.
    pub fn as_block(&self) -> Option<block::State> {
        if let State::Block(state) = self { Some(*state) } else { None }
    }

    fn as_sliding_window(&self) -> Option<sliding_window::State> {
        if let State::SlidingWindow(state) = self { Some(*state) } else { None }
    }

    fn as_sliding_log(&self) -> Option<&sliding_log::State> {
        if let State::SlidingLog(state) = self { Some(state) } else { None }
    }

    fn as_bucket(&self) -> Option<bucket::State> {
        if let State::Bucket(state) = self.used()? { Some(*state) } else { None }
    }

    fn as_hybrid(&self) -> Option<&hybrid::State> {
        if let State::Hybrid(state) = self { Some(state) } else { None }
    }

    fn as_concurrency(&self) -> Option<&concurrency::State> {
        if let State::Concurrency(state) = self { Some(state) } else { None }
    }
}

const _: () = assert!(size_of::<State>() <= 24, "an entry of the memory store is 64 bytes at most");

/// Applies an operation to a counter. `state` is the stored state, or `None` for a new counter.
///
/// A state that belongs to another algorithm is ignored. No counter has such a state, because the
/// algorithm is part of a counter's key. `Op::Take` with zero hits acts as `Op::PEEK`.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::algorithm::apply;
/// use tidegate::domain::*;
///
/// let algorithm = Algorithm::Bucket(Bucket {
///     burst: Hits(3),
///     debt_burst: Hits(3),
///     refill: Refill::Arrival { emission: Micros(100_000) },
///     floor: Hits(0),
///     leaky: false,
/// });
/// let rate = Rate { requests_per_unit: 10, unit: Some(Unit::Second), unit_multiplier: 1 };
/// let (charge, on_store_failure) = Default::default();
/// let (prepay, block_seconds, reserve, limit_id) = (false, None, None, 1);
/// let limit =
///     Limit { algorithm, rate, charge, on_store_failure, prepay, block_seconds, reserve, limit_id };
/// let now = Micros(1_763_668_800_000_000);
///
/// let taken = apply(None, &limit, Op::Take { cost: Hits(3) }, now);
/// assert_eq!(taken.outcome.available, Hits(0));
/// let refused = apply(taken.write.as_ref(), &limit, Op::Take { cost: Hits(1) }, now);
/// assert_eq!(refused.outcome.retry_after, Some(Micros(100_000)));
/// assert_eq!(refused.write, None);
/// ```
pub fn apply(state: Option<&State>, limit: &Limit, op: Op, now: Micros) -> Step<State> {
    apply_for(state, limit, op, None, now)
}

/// Applies an operation on behalf of a slot holder, or to the hold with this id. Only concurrency
/// limits and holds use `holder`; otherwise, this function is the same as [`apply`].
pub fn apply_for(
    state: Option<&State>,
    limit: &Limit,
    op: Op,
    holder: Option<Holder>,
    now: Micros,
) -> Step<State> {
    match limit.reserve {
        Some(_) => budget::apply(state, limit, op, holder, now),
        None => apply_without_holds(state, limit, limit.charge, op, holder, now),
    }
}

/// Applies an operation to the counter itself, under the given charge mode.
fn apply_without_holds(
    state: Option<&State>,
    limit: &Limit,
    charge: Charge,
    op: Op,
    holder: Option<Holder>,
    now: Micros,
) -> Step<State> {
    let op = CounterOp::from(op);
    match &limit.algorithm {
        Algorithm::FixedWindow(window) => {
            fixed_window::apply(state.and_then(State::as_fixed_window), window, charge, op, now)
                .map(State::FixedWindow)
        }
        Algorithm::SlidingWindow(window) => {
            sliding_window::apply(state.and_then(State::as_sliding_window), window, charge, op, now)
                .map(State::SlidingWindow)
        }
        Algorithm::SlidingLog(log) => {
            sliding_log::apply(state.and_then(State::as_sliding_log), log, charge, op, now)
                .map(|state| State::SlidingLog(Box::new(state)))
        }
        Algorithm::Bucket(bucket) => {
            bucket::apply(state.and_then(State::as_bucket), bucket, charge, op, now)
                .map(State::Bucket)
        }
        Algorithm::Hybrid(classes) => {
            hybrid::apply(state.and_then(State::as_hybrid), classes, op, now)
                .map(|state| State::Hybrid(Box::new(state)))
        }
        Algorithm::Concurrency(slots) => {
            concurrency::apply(state.and_then(State::as_concurrency), slots, op, holder, now)
                .map(|state| State::Concurrency(Box::new(state)))
        }
    }
}

/// Refunds a recorded charge to its counter (clause 16 of the contract documented in `store`).
///
/// `limit` is the limit under which the hits were charged. Returns the new state to store, or
/// `None` if the charge has already expired. Callers must refund each charge at most once.
pub fn refund(state: &State, limit: &Limit, taken: &ChargeRecord, now: Micros) -> Option<State> {
    if let State::Budget(budget) = state {
        return budget::refund(budget, limit, taken, now);
    }
    // No hold is left, and what a hold held was never charged.
    if taken.is_hold(limit) {
        return None;
    }
    match &limit.algorithm {
        Algorithm::FixedWindow(_) => {
            fixed_window::refund(state.as_fixed_window()?, taken).map(State::FixedWindow)
        }
        Algorithm::SlidingWindow(window) => {
            sliding_window::refund(state.as_sliding_window()?, window, taken)
                .map(State::SlidingWindow)
        }
        Algorithm::SlidingLog(log) => sliding_log::refund(state.as_sliding_log()?, log, taken, now)
            .map(|state| State::SlidingLog(Box::new(state))),
        Algorithm::Bucket(bucket) => {
            bucket::refund(state.as_bucket()?, bucket, limit.debt_charge(), taken, now)
                .map(State::Bucket)
        }
        Algorithm::Hybrid(classes) => hybrid::refund(state.as_hybrid()?, classes, taken, now)
            .map(|state| State::Hybrid(Box::new(state))),
        Algorithm::Concurrency(slots) => {
            concurrency::refund(state.as_concurrency()?, slots, taken, now)
                .map(|state| State::Concurrency(Box::new(state)))
        }
    }
}

/// Returns the time from which the counter can be deleted, because its state is then equivalent to
/// that of a new counter.
///
/// The two states are equivalent for `limit` and for every limit that may later use the same
/// counter: a window's length is part of the key, and a bucket's debt is stored as a time. For a
/// hybrid, this holds for the limit that `limit` is a fraction of, but not after a change. Returns
/// zero for a state that belongs to another algorithm.
pub fn expires_at(state: &State, limit: &Limit) -> Micros {
    if let State::Block(block) = state {
        return block.end;
    }
    let expires = match &limit.algorithm {
        Algorithm::FixedWindow(window) => {
            state.as_fixed_window().map(|state| fixed_window::expires_at(state, window))
        }
        Algorithm::SlidingWindow(window) => {
            state.as_sliding_window().map(|state| sliding_window::expires_at(state, window))
        }
        Algorithm::SlidingLog(log) => {
            state.as_sliding_log().map(|state| sliding_log::expires_at(state, log))
        }
        Algorithm::Bucket(_) => state.as_bucket().map(bucket::expires_at),
        Algorithm::Hybrid(classes) => {
            state.as_hybrid().map(|state| hybrid::expires_at(state, classes))
        }
        Algorithm::Concurrency(_) => state.as_concurrency().map(concurrency::expires_at),
    };
    let held_until =
        if let State::Budget(budget) = state { budget.held_until() } else { Micros::ZERO };
    expires.unwrap_or(Micros::ZERO).max(held_until)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        Bucket, Concurrency, FixedWindow, Hits, Hybrid, Refill, SlidingLog, SlidingWindow, Window,
        fixtures,
    };

    /// Time of the charges: the start of a minute.
    const CHARGED_AT: u64 = 1_800_000_000_000_000;

    #[test]
    fn a_state_from_the_future_is_reported_for_every_algorithm() {
        let (hits, length) = (Hits(5), Micros::from_secs(60));
        let (burst, floor, window) = (hits, Hits::ZERO, Window::Epoch { length });
        let refill = Refill::Arrival { emission: Micros(100_000) };
        let (shares, class, floor_percent) = ([100].into(), 0, 0);
        let hybrid = Hybrid {
            burst,
            expiry_burst: burst,
            hits,
            window: length,
            shares,
            class,
            floor_percent,
        };
        // With the longest step back of the clock that is not reported, in microseconds.
        for (algorithm, back_max) in [
            (Algorithm::FixedWindow(FixedWindow { hits, window }), 0),
            (Algorithm::SlidingWindow(SlidingWindow { hits, length }), 0),
            (Algorithm::SlidingLog(SlidingLog { hits, length }), 0),
            // The other 400 ms of the capacity, and one second.
            (
                Algorithm::Bucket(Bucket { burst, debt_burst: burst, refill, floor, leaky: false }),
                1_400_000,
            ),
            // The time to fill an empty counter, and one tick.
            (Algorithm::Hybrid(hybrid), 60_001_000),
            // One more lease.
            (Algorithm::Concurrency(Concurrency { slots: hits, lease: length }), 60_000_000),
        ] {
            let limit = fixtures::limit(algorithm);
            let take = Op::Take { cost: Hits::ONE };
            let state = apply(None, &limit, take, Micros(CHARGED_AT)).write;
            let is_reported = |back: u64| {
                apply(state.as_ref(), &limit, Op::PEEK, Micros(CHARGED_AT - back)).stepped_back
            };
            let reports = [back_max, back_max + 1, 600_000_000].map(is_reported);
            assert_eq!(reports, [false, true, true], "{:?}", limit.algorithm);
        }
    }

    /// A full memory store has no room for a state that grows.
    #[test]
    fn a_refund_needs_no_more_memory() {
        let (hits, length, lease) = (Hits(5), Micros::from_secs(60), Micros::from_secs(60));
        for algorithm in [
            Algorithm::SlidingLog(SlidingLog { hits, length }),
            Algorithm::Concurrency(Concurrency { slots: hits, lease }),
        ] {
            let limit = fixtures::limit(algorithm);
            let now = Micros(CHARGED_AT);
            let mut state = None;
            let mut taken = None;
            for holder in [1, 2] {
                let take = Op::Take { cost: Hits::ONE };
                let step = apply_for(state.as_ref(), &limit, take, Some(Holder(holder)), now);
                (state, taken) = (step.write, step.outcome.taken);
            }
            let (state, taken) = (state.unwrap(), taken.unwrap());
            let refunded = refund(&state, &limit, &taken, now).unwrap();
            assert!(refunded.heap_bytes() <= state.heap_bytes(), "{:?}", limit.algorithm);
        }
    }
}
