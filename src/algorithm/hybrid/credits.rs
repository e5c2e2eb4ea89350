//! A hybrid limit in credits and ticks: what flows in, what passes, how long to wait.
//!
//! Not here: the formulas' meaning (the parent's head), operations and receipts.

use std::sync::Arc;

use super::State;
use crate::domain::{Hits, Hybrid, Micros};

/// Shares are in per cent.
pub(super) const PARTS: u64 = 100;

/// More credits than any limit that the policy lets through holds; four times as many are still exact
/// in Lua.
const CREDITS_MAX: u64 = 1 << 51;

/// A limit's numbers, in credits and ticks.
pub(crate) struct HybridCredits<'a> {
    pub(crate) limit: &'a Hybrid,
    pub(crate) tick: u64,
    pub(crate) unit: u64,
    pub(crate) burst: u64,
    pub(crate) total: u64,
}

impl<'a> HybridCredits<'a> {
    pub(crate) fn of(limit: &'a Hybrid) -> HybridCredits<'a> {
        let tick = tick(limit.window);
        let unit = PARTS * (limit.window.0 / tick).clamp(1, CREDITS_MAX / PARTS);
        // Without effect on any limit that the policy lets through.
        let burst = limit.burst.0.min(CREDITS_MAX / unit);
        HybridCredits { limit, tick, unit, burst, total: unit * burst }
    }

    fn classes(&self) -> std::ops::Range<usize> {
        0..self.limit.shares.len()
    }

    fn cap(&self, class: usize) -> u64 {
        self.total / PARTS * u64::from(self.limit.shares[class])
    }

    fn flow(&self, class: usize) -> u64 {
        u64::from(self.limit.shares[class]).saturating_mul(self.limit.hits.0)
    }

    /// What the shares leave over of all that flows in.
    fn spare_flow(&self) -> u64 {
        let shares: u64 = self.limit.shares.iter().map(|share| u64::from(*share)).sum();
        PARTS.saturating_sub(shares).saturating_mul(self.limit.hits.0)
    }

    fn full(&self, at: u64) -> State {
        let own: Arc<[u64]> = self.classes().map(|class| self.cap(class)).collect();
        let pool = self.total.saturating_sub(own.iter().sum());
        State { last: at, pool, own }
    }

    /// What flows in within `ticks`. More than twice everything together is no different from it,
    /// and stays exact in doubles.
    fn gain(&self, flow: u64, ticks: u64) -> u64 {
        let most = self.total * 2;
        if flow > 0 && ticks > most / flow { most } else { flow * ticks }
    }

    /// The own buckets `ticks` later, and what the pool would hold then if it had no bound.
    fn grown(&self, state: &State, ticks: u64) -> (Arc<[u64]>, u64) {
        let mut pool = state.pool + self.gain(self.spare_flow(), ticks);
        let own = self
            .classes()
            .map(|class| {
                let (had, cap) = (state.own[class], self.cap(class));
                let wants = had + self.gain(self.flow(class), ticks);
                pool = pool.min(self.total) + wants.saturating_sub(cap);
                wants.min(cap)
            })
            .collect();
        (own, pool)
    }

    /// The state `ticks` later.
    fn refilled(&self, state: &State, ticks: u64) -> State {
        let (own, pool) = self.grown(state, ticks);
        let pool = pool.min(self.room(&own));
        State { last: state.last.saturating_add(ticks), pool, own }
    }

    /// The most that the pool may hold.
    fn room(&self, own: &[u64]) -> u64 {
        self.total.saturating_sub(own.iter().sum())
    }

    /// The state at a time; one that does not fit the limit (its classes changed) counts as full.
    pub(super) fn read(&self, state: Option<&State>, at: u64) -> (State, bool) {
        let Some(state) = state.filter(|state| state.own.len() == self.limit.shares.len()) else {
            return (self.full(at), false);
        };
        let fitting = State {
            last: state.last,
            pool: state.pool.min(self.total),
            own: (0..state.own.len()).map(|c| state.own[c].min(self.cap(c))).collect(),
        };
        // From further ahead than the bucket takes to fill: from a clock that was far wrong.
        if state.last > at.saturating_add(self.ticks_to_full()).saturating_add(1) {
            let empty = fitting.own.iter().map(|_| 0).collect();
            return (State { last: at, pool: 0, own: empty }, true);
        }
        (self.refilled(&fitting, at.saturating_sub(state.last)), false)
    }

    /// After so long everything is full, whatever was there.
    fn ticks_to_full(&self) -> u64 {
        let slowest = self
            .classes()
            .map(|class| self.flow(class))
            .chain([self.spare_flow()])
            .filter(|flow| *flow > 0)
            .min();
        slowest.map_or(0, |flow| self.total.div_ceil(flow))
    }

    /// Returns the minimum credits that the pool keeps, whatever the cost of a take.
    fn floor(&self, own: &[u64]) -> u64 {
        let room = self.room(own);
        let caps: u64 = self.classes().map(|class| self.cap(class)).sum();
        let size = if caps < self.total { self.total - caps } else { room };
        let percent = u64::from(self.limit.floor_percent);
        let part = size / PARTS * percent + (size % PARTS * percent).div_ceil(PARTS);
        let whole = part.div_ceil(self.unit) * self.unit;
        if caps < self.total { whole } else { whole.min(room) }
    }

    /// Returns the credits that the pool must hold for a take of `credits`; 0 if the class has enough itself.
    fn needed(&self, own: &[u64], credits: u64) -> u64 {
        match credits.saturating_sub(own[self.limit.class]) {
            0 => 0,
            rest => rest.max(self.floor(own)),
        }
    }

    /// What a take of `credits` leaves; `None` if it does not pass.
    pub(super) fn take(&self, state: &State, credits: u64) -> Option<State> {
        if state.pool < self.needed(&state.own, credits) {
            return None;
        }
        let class = self.limit.class;
        let from_own = state.own[class].min(credits);
        let mut own = state.own.to_vec();
        own[class] -= from_own;
        let pool = state.pool - (credits - from_own);
        Some(State { last: state.last, pool, own: own.into() })
    }

    /// Ticks until it passes, at least 1; `None` if it never does.
    pub(super) fn wait(&self, state: &State, credits: u64) -> Option<u64> {
        let reached = |ticks| {
            let (own, pool) = self.grown(state, ticks);
            pool >= self.needed(&own, credits)
        };
        let (mut fails, mut passes) = (0, self.ticks_to_full());
        if !reached(passes) {
            return None;
        }
        while passes - fails > 1 {
            let middle = fails + (passes - fails) / 2;
            if reached(middle) { passes = middle } else { fails = middle }
        }
        let then = self.refilled(state, passes);
        (then.pool >= self.needed(&then.own, credits)).then_some(passes)
    }

    /// Single hits that pass one after the other.
    pub(super) fn available(&self, state: &State) -> u64 {
        let class = self.limit.class;
        let (whole, part) = (state.own[class] / self.unit, state.own[class] % self.unit);
        let mut own = state.own.to_vec();
        // The hit that is not all in the own bucket takes its rest from the pool, and from then on
        // each takes all of itself; each looks at the floor before it takes.
        own[class] = part;
        if state.pool < self.needed(&own, self.unit) {
            return whole;
        }
        let left = state.pool - (self.unit - part);
        own[class] = 0;
        match left.checked_sub(self.needed(&own, self.unit)) {
            Some(above) => whole + 1 + above / self.unit + 1,
            None => whole + 1,
        }
    }

    /// What comes back goes into the own bucket first, the rest into the pool; never above the
    /// caps.
    pub(super) fn returned(&self, state: &State, class: usize, credits: u64) -> State {
        let mut own = state.own.to_vec();
        let to_own = credits.min(self.cap(class).saturating_sub(own[class]));
        own[class] += to_own;
        let pool = (state.pool + credits - to_own).min(self.room(&own));
        State { last: state.last, pool, own: own.into() }
    }

    pub(super) fn ticks_until_full(&self, state: &State) -> u64 {
        let full = self.full(state.last);
        let class = |nth: usize| {
            let lacks = full.own[nth].saturating_sub(state.own[nth]);
            if lacks == 0 { 0 } else { lacks.div_ceil(self.flow(nth).max(1)) }
        };
        let own = (0..state.own.len()).map(class).max().unwrap_or(0);
        let held: u64 = state.pool + state.own.iter().sum::<u64>();
        let all = self
            .total
            .saturating_sub(held)
            .div_ceil(PARTS.saturating_mul(self.limit.hits.0.max(1)));
        own.max(all)
    }
}

fn tick(window: Micros) -> u64 {
    crate::domain::SlidingWindow { hits: Hits::ZERO, length: window }.tick().0
}
