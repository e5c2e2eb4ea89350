//! Arithmetic of a hybrid limit in credits and ticks: refill, admission, waits.
//!
//! Not here: the operations on counters and an explanation of the formulas (both in `hybrid`).

use std::sync::Arc;

use super::hybrid::State;
use crate::domain::{Hits, Hybrid, Micros};

/// Sum of the guaranteed shares of all classes and the unassigned share, in percent. Shares are
/// whole percentages.
pub(super) const SHARES_TOTAL_PERCENT: u64 = 100;

/// Upper bound on credit counts: 2^51. Sums of up to four counts are at most 2^53, so doubles,
/// Lua's only number type, represent them exactly.
const CREDITS_MAX: u64 = 1 << 51;

/// Parameters of a hybrid limit in credits and ticks, the integer units of its arithmetic.
pub(crate) struct HybridCredits<'a> {
    pub(crate) limit: &'a Hybrid,
    /// Length of a tick, the time unit of the refill, in microseconds.
    pub(crate) tick: u64,
    /// Cost of one hit, in credits.
    pub(crate) unit: u64,
    /// Total capacity of all class buckets and the pool, in hits.
    pub(crate) burst: u64,
    /// Total capacity of all class buckets and the pool, in credits.
    pub(crate) total: u64,
}

impl<'a> HybridCredits<'a> {
    pub(crate) fn new(limit: &'a Hybrid) -> HybridCredits<'a> {
        let tick = tick_micros(limit.window);
        let unit = SHARES_TOTAL_PERCENT
            * (limit.window.0 / tick).clamp(1, CREDITS_MAX / SHARES_TOTAL_PERCENT);
        // The policy's bounds keep every limit below this clamp.
        let burst = limit.burst.0.min(CREDITS_MAX / unit);
        HybridCredits { limit, tick, unit, burst, total: unit * burst }
    }

    fn classes(&self) -> std::ops::Range<usize> {
        0..self.limit.shares.len()
    }

    /// Returns the capacity of a class's guaranteed bucket, in credits.
    fn class_capacity(&self, class: usize) -> u64 {
        self.total / SHARES_TOTAL_PERCENT * u64::from(self.limit.shares[class])
    }

    /// Returns the refill rate of a class's guaranteed bucket, in credits per tick.
    fn class_flow(&self, class: usize) -> u64 {
        u64::from(self.limit.shares[class]).saturating_mul(self.limit.hits.0)
    }

    /// Returns the rate at which the pool is refilled from the unassigned share, in credits per
    /// tick.
    fn unassigned_flow(&self) -> u64 {
        let shares: u64 = self.limit.shares.iter().map(|share| u64::from(*share)).sum();
        SHARES_TOTAL_PERCENT.saturating_sub(shares).saturating_mul(self.limit.hits.0)
    }

    /// Returns a state at tick `at` in which the pool and every class bucket are full.
    fn full_state(&self, at: u64) -> State {
        let own: Arc<[u64]> = self.classes().map(|class| self.class_capacity(class)).collect();
        let pool = self.total.saturating_sub(own.iter().sum());
        State { last_tick: at, pool, buckets: own }
    }

    /// Returns the credits refilled in `ticks` ticks at `flow` credits per tick, capped at twice
    /// the total capacity. More credits would have no effect, and the cap keeps sums exact as
    /// doubles in Lua.
    fn inflow(&self, flow: u64, ticks: u64) -> u64 {
        let most = self.total * 2;
        if flow > 0 && ticks > most / flow { most } else { flow * ticks }
    }

    /// Returns the credits in the class buckets and in the pool after a refill of `ticks` ticks.
    /// The pool is not yet limited to its capacity.
    fn refill_unbounded(&self, state: &State, ticks: u64) -> (Arc<[u64]>, u64) {
        let mut pool = state.pool + self.inflow(self.unassigned_flow(), ticks);
        let own = self
            .classes()
            .map(|class| {
                let (had, cap) = (state.buckets[class], self.class_capacity(class));
                let wants = had + self.inflow(self.class_flow(class), ticks);
                pool = pool.min(self.total) + wants.saturating_sub(cap);
                wants.min(cap)
            })
            .collect();
        (own, pool)
    }

    fn refill(&self, state: &State, ticks: u64) -> State {
        let (own, pool) = self.refill_unbounded(state, ticks);
        let pool = pool.min(self.pool_capacity(&own));
        State { last_tick: state.last_tick.saturating_add(ticks), pool, buckets: own }
    }

    /// Returns the capacity of the pool, in credits, given the credits in the class buckets. The
    /// pool and the buckets share the total capacity.
    fn pool_capacity(&self, own: &[u64]) -> u64 {
        self.total.saturating_sub(own.iter().sum())
    }

    /// Returns the state refilled up to tick `at`, and whether the stored time was too far in the
    /// future and was clamped. Returns a full state if none is stored, or if the stored number of
    /// classes differs from the limit's.
    pub(super) fn read(&self, state: Option<&State>, at: u64) -> (State, bool) {
        let Some(state) = state.filter(|state| state.buckets.len() == self.limit.shares.len())
        else {
            return (self.full_state(at), false);
        };
        let fitting = State {
            last_tick: state.last_tick,
            pool: state.pool.min(self.total),
            buckets: self.classes().map(|c| state.buckets[c].min(self.class_capacity(c))).collect(),
        };
        // Further ahead than everything takes to fill: written by a wrong clock.
        if state.last_tick > at.saturating_add(self.refill_ticks_max()).saturating_add(1) {
            let empty = fitting.buckets.iter().map(|_| 0).collect();
            return (State { last_tick: at, pool: 0, buckets: empty }, true);
        }
        (self.refill(&fitting, at.saturating_sub(state.last_tick)), false)
    }

    /// Returns an upper bound on the number of ticks until an empty state is full again.
    fn refill_ticks_max(&self) -> u64 {
        let slowest = self
            .classes()
            .map(|class| self.class_flow(class))
            .chain([self.unassigned_flow()])
            .filter(|flow| *flow > 0)
            .min();
        slowest.map_or(0, |flow| self.total.div_ceil(flow))
    }

    /// Returns the floor of the pool: the credits that must be in the pool before a hit may use it.
    /// `own` lists the credits in the bucket of each class, except that the bucket of the limit's
    /// class has `bucket` credits.
    fn pool_floor(&self, own: &[u64], bucket: u64) -> u64 {
        let room =
            self.pool_capacity(own).saturating_add(own[self.limit.class]).saturating_sub(bucket);
        let caps: u64 = self.classes().map(|class| self.class_capacity(class)).sum();
        let size = if caps < self.total { self.total - caps } else { room };
        let percent = u64::from(self.limit.floor_percent);
        let part = size / SHARES_TOTAL_PERCENT * percent
            + (size % SHARES_TOTAL_PERCENT * percent).div_ceil(SHARES_TOTAL_PERCENT);
        let whole = part.div_ceil(self.unit) * self.unit;
        if caps < self.total { whole } else { whole.min(room) }
    }

    /// Returns the credits that must be in the pool for a charge of `credits` to pass, or 0 if the
    /// class's own bucket covers the charge.
    fn pool_needed(&self, own: &[u64], credits: u64) -> u64 {
        let bucket = own[self.limit.class];
        let rest = credits.saturating_sub(bucket);
        if rest == 0 {
            return 0;
        }
        // Each hit needs the floor before it, so the last one does after all the others.
        let last = rest.min(self.unit);
        let bucket_before_last = if rest > self.unit { 0 } else { bucket % self.unit };
        rest - last + last.max(self.pool_floor(own, bucket_before_last))
    }

    /// Returns the state after a charge of `credits`, or `None` if the charge is rejected.
    pub(super) fn take(&self, state: &State, credits: u64) -> Option<State> {
        if state.pool < self.pool_needed(&state.buckets, credits) {
            return None;
        }
        let class = self.limit.class;
        let from_own = state.buckets[class].min(credits);
        let mut own = state.buckets.to_vec();
        own[class] -= from_own;
        let pool = state.pool - (credits - from_own);
        Some(State { last_tick: state.last_tick, pool, buckets: own.into() })
    }

    /// Returns the number of ticks until a rejected charge of `credits` passes, at least 1.
    ///
    /// Considers only the first tick at which the pool would suffice if its capacity were
    /// unlimited. Returns `None` if there is no such tick, or if the pool's capacity at that tick
    /// is too small for the charge. In the second case, the charge may still pass later.
    pub(super) fn wait_time(&self, state: &State, credits: u64) -> Option<u64> {
        let reached = |ticks| {
            let (own, pool) = self.refill_unbounded(state, ticks);
            pool >= self.pool_needed(&own, credits)
        };
        let (mut fails, mut passes) = (0, self.refill_ticks_max());
        if !reached(passes) {
            return None;
        }
        while passes - fails > 1 {
            let middle = fails + (passes - fails) / 2;
            if reached(middle) { passes = middle } else { fails = middle }
        }
        let after = self.refill(state, passes);
        (after.pool >= self.pool_needed(&after.buckets, credits)).then_some(passes)
    }

    /// Returns the number of single-hit charges that would pass now, one after another.
    pub(super) fn available(&self, state: &State) -> u64 {
        let class = self.limit.class;
        let (whole, part) = (state.buckets[class] / self.unit, state.buckets[class] % self.unit);
        let mut own = state.buckets.to_vec();
        // After the whole hits of the own bucket, one hit takes the bucket's remainder and the rest
        // from the pool. All later hits come from the pool alone. Each one checks the floor first.
        own[class] = part;
        if state.pool < self.pool_needed(&own, self.unit) {
            return whole;
        }
        let left = state.pool - (self.unit - part);
        own[class] = 0;
        match left.checked_sub(self.pool_needed(&own, self.unit)) {
            Some(above) => whole + 1 + above / self.unit + 1,
            None => whole + 1,
        }
    }

    /// Returns the state after a refund of `to_own` credits to the bucket of the limit's class and
    /// `to_pool` credits to the pool. Credits that do not fit into the bucket go to the pool, and
    /// those that do not fit there are dropped.
    pub(super) fn refund(&self, state: &State, to_own: u64, to_pool: u64) -> State {
        let class = self.limit.class;
        let mut own = state.buckets.to_vec();
        let fitting = to_own.min(self.class_capacity(class).saturating_sub(own[class]));
        own[class] += fitting;
        let pool = (state.pool + to_own - fitting + to_pool).min(self.pool_capacity(&own));
        State { last_tick: state.last_tick, pool, buckets: own.into() }
    }

    /// Returns the number of ticks for which a counter is kept after its last change: in that time
    /// everything refills, however little was left.
    pub(crate) fn expiry_ticks(&self) -> u64 {
        let hits = self.limit.expiry_burst.0.min(CREDITS_MAX / self.unit).max(self.burst);
        let flow = SHARES_TOTAL_PERCENT.saturating_mul(self.limit.hits.0.max(1));
        (hits * self.unit).div_ceil(flow)
    }

    /// Returns the number of ticks until the pool and all class buckets are full.
    pub(super) fn ticks_until_full(&self, state: &State) -> u64 {
        let full = self.full_state(state.last_tick);
        let ticks_of_class = |nth: usize| {
            let lacks = full.buckets[nth].saturating_sub(state.buckets[nth]);
            if lacks == 0 { 0 } else { lacks.div_ceil(self.class_flow(nth).max(1)) }
        };
        let own = (0..state.buckets.len()).map(ticks_of_class).max().unwrap_or(0);
        let held: u64 = state.pool + state.buckets.iter().sum::<u64>();
        let all = self
            .total
            .saturating_sub(held)
            .div_ceil(SHARES_TOTAL_PERCENT.saturating_mul(self.limit.hits.0.max(1)));
        own.max(all)
    }
}

/// Returns the length of a tick in microseconds, chosen from the window length by the same rule as
/// for sliding windows.
fn tick_micros(window: Micros) -> u64 {
    crate::domain::SlidingWindow { hits: Hits::ZERO, length: window }.tick().0
}
