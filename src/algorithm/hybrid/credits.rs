//! Numbers of a hybrid limit in credits and ticks: refill, admission, waits.
//!
//! Not here: the explanation of the formulas, operations and receipts (`hybrid`).

use std::sync::Arc;

use super::State;
use crate::domain::{Hits, Hybrid, Micros};

/// Parts of a whole share: shares are percentages.
pub(super) const PARTS: u64 = 100;

/// Upper bound of all credits. Sums of up to four times as many are still exact as doubles in Lua.
const CREDITS_MAX: u64 = 1 << 51;

/// Numbers of a hybrid limit, converted from hits and microseconds to credits and ticks.
pub(crate) struct HybridCredits<'a> {
    pub(crate) limit: &'a Hybrid,
    /// Length of a tick in microseconds.
    pub(crate) tick: u64,
    /// Credits per hit.
    pub(crate) unit: u64,
    /// Capacity of all buckets and the pool together, in hits.
    pub(crate) burst: u64,
    /// Capacity of all buckets and the pool together, in credits.
    pub(crate) total: u64,
}

impl<'a> HybridCredits<'a> {
    pub(crate) fn of(limit: &'a Hybrid) -> HybridCredits<'a> {
        let tick = tick(limit.window);
        let unit = PARTS * (limit.window.0 / tick).clamp(1, CREDITS_MAX / PARTS);
        // The policy's bounds keep every limit below this clamp.
        let burst = limit.burst.0.min(CREDITS_MAX / unit);
        HybridCredits { limit, tick, unit, burst, total: unit * burst }
    }

    fn classes(&self) -> std::ops::Range<usize> {
        0..self.limit.shares.len()
    }

    /// Returns the capacity of a class's own bucket.
    fn cap(&self, class: usize) -> u64 {
        self.total / PARTS * u64::from(self.limit.shares[class])
    }

    /// Returns the credits per tick that a class's own bucket receives.
    fn flow(&self, class: usize) -> u64 {
        u64::from(self.limit.shares[class]).saturating_mul(self.limit.hits.0)
    }

    /// Returns the credits per tick that no share claims; they flow into the pool.
    fn spare_flow(&self) -> u64 {
        let shares: u64 = self.limit.shares.iter().map(|share| u64::from(*share)).sum();
        PARTS.saturating_sub(shares).saturating_mul(self.limit.hits.0)
    }

    /// Returns the state with everything full.
    fn full(&self, at: u64) -> State {
        let own: Arc<[u64]> = self.classes().map(|class| self.cap(class)).collect();
        let pool = self.total.saturating_sub(own.iter().sum());
        State { last: at, pool, own }
    }

    /// Returns the credits that flow in within `ticks`, at most twice the total: more has no
    /// effect, and the bound keeps sums exact as doubles in Lua.
    fn inflow(&self, flow: u64, ticks: u64) -> u64 {
        let most = self.total * 2;
        if flow > 0 && ticks > most / flow { most } else { flow * ticks }
    }

    /// Returns the own buckets after `ticks`, and the pool without its bound.
    fn refill_unbounded(&self, state: &State, ticks: u64) -> (Arc<[u64]>, u64) {
        let mut pool = state.pool + self.inflow(self.spare_flow(), ticks);
        let own = self
            .classes()
            .map(|class| {
                let (had, cap) = (state.own[class], self.cap(class));
                let wants = had + self.inflow(self.flow(class), ticks);
                pool = pool.min(self.total) + wants.saturating_sub(cap);
                wants.min(cap)
            })
            .collect();
        (own, pool)
    }

    /// Returns the state after `ticks` without takes.
    fn refill(&self, state: &State, ticks: u64) -> State {
        let (own, pool) = self.refill_unbounded(state, ticks);
        let pool = pool.min(self.room(&own));
        State { last: state.last.saturating_add(ticks), pool, own }
    }

    /// Returns the most credits that the pool may hold.
    fn room(&self, own: &[u64]) -> u64 {
        self.total.saturating_sub(own.iter().sum())
    }

    /// Returns the state at tick `at`, and whether it was clamped. A state with another number of
    /// classes than the limit counts as full.
    pub(super) fn read(&self, state: Option<&State>, at: u64) -> (State, bool) {
        let Some(state) = state.filter(|state| state.own.len() == self.limit.shares.len()) else {
            return (self.full(at), false);
        };
        let fitting = State {
            last: state.last,
            pool: state.pool.min(self.total),
            own: (0..state.own.len()).map(|c| state.own[c].min(self.cap(c))).collect(),
        };
        // Further ahead than everything takes to fill: written by a wrong clock.
        if state.last > at.saturating_add(self.ticks_to_full()).saturating_add(1) {
            let empty = fitting.own.iter().map(|_| 0).collect();
            return (State { last: at, pool: 0, own: empty }, true);
        }
        (self.refill(&fitting, at.saturating_sub(state.last)), false)
    }

    /// Returns the ticks after which everything is full, whatever the state.
    fn ticks_to_full(&self) -> u64 {
        let slowest = self
            .classes()
            .map(|class| self.flow(class))
            .chain([self.spare_flow()])
            .filter(|flow| *flow > 0)
            .min();
        slowest.map_or(0, |flow| self.total.div_ceil(flow))
    }

    /// Returns the credits that the pool must hold before the class takes from it.
    fn floor(&self, own: &[u64]) -> u64 {
        let room = self.room(own);
        let caps: u64 = self.classes().map(|class| self.cap(class)).sum();
        let size = if caps < self.total { self.total - caps } else { room };
        let percent = u64::from(self.limit.floor_percent);
        let part = size / PARTS * percent + (size % PARTS * percent).div_ceil(PARTS);
        let whole = part.div_ceil(self.unit) * self.unit;
        if caps < self.total { whole } else { whole.min(room) }
    }

    /// Returns the credits that the pool must hold for a take of `credits`; 0 if the own bucket
    /// suffices.
    fn pool_needed(&self, own: &[u64], credits: u64) -> u64 {
        match credits.saturating_sub(own[self.limit.class]) {
            0 => 0,
            rest => rest.max(self.floor(own)),
        }
    }

    /// Returns the state after a take of `credits`, or `None` if the take is refused.
    pub(super) fn take(&self, state: &State, credits: u64) -> Option<State> {
        if state.pool < self.pool_needed(&state.own, credits) {
            return None;
        }
        let class = self.limit.class;
        let from_own = state.own[class].min(credits);
        let mut own = state.own.to_vec();
        own[class] -= from_own;
        let pool = state.pool - (credits - from_own);
        Some(State { last: state.last, pool, own: own.into() })
    }

    /// Returns the ticks until a refused take of `credits` passes, at least 1; `None` if it never
    /// does.
    pub(super) fn wait(&self, state: &State, credits: u64) -> Option<u64> {
        let reached = |ticks| {
            let (own, pool) = self.refill_unbounded(state, ticks);
            pool >= self.pool_needed(&own, credits)
        };
        let (mut fails, mut passes) = (0, self.ticks_to_full());
        if !reached(passes) {
            return None;
        }
        while passes - fails > 1 {
            let middle = fails + (passes - fails) / 2;
            if reached(middle) { passes = middle } else { fails = middle }
        }
        let after = self.refill(state, passes);
        (after.pool >= self.pool_needed(&after.own, credits)).then_some(passes)
    }

    /// Returns how many single hits pass one after another.
    pub(super) fn available(&self, state: &State) -> u64 {
        let class = self.limit.class;
        let (whole, part) = (state.own[class] / self.unit, state.own[class] % self.unit);
        let mut own = state.own.to_vec();
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

    /// Returns the state after a refund of `credits`: into the own bucket first, the rest into the
    /// pool, never above their capacities.
    pub(super) fn refund(&self, state: &State, class: usize, credits: u64) -> State {
        let mut own = state.own.to_vec();
        let to_own = credits.min(self.cap(class).saturating_sub(own[class]));
        own[class] += to_own;
        let pool = (state.pool + credits - to_own).min(self.room(&own));
        State { last: state.last, pool, own: own.into() }
    }

    /// Returns the ticks until all own buckets and the total are full.
    pub(super) fn ticks_until_full(&self, state: &State) -> u64 {
        let full = self.full(state.last);
        let ticks_of_class = |nth: usize| {
            let lacks = full.own[nth].saturating_sub(state.own[nth]);
            if lacks == 0 { 0 } else { lacks.div_ceil(self.flow(nth).max(1)) }
        };
        let own = (0..state.own.len()).map(ticks_of_class).max().unwrap_or(0);
        let held: u64 = state.pool + state.own.iter().sum::<u64>();
        let all = self
            .total
            .saturating_sub(held)
            .div_ceil(PARTS.saturating_mul(self.limit.hits.0.max(1)));
        own.max(all)
    }
}

/// Returns the length of a tick, as for sliding windows.
fn tick(window: Micros) -> u64 {
    crate::domain::SlidingWindow { hits: Hits::ZERO, length: window }.tick().0
}
