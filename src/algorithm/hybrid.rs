//! Hybrid limit for consumer classes: a guaranteed bucket for each class, and a common pool with a
//! floor for each class. For the symbols, see the [parent module](super).
//!
//! Extends "Development of API rate limiting methods based on consumer classes" (Seleznev, 2025,
//! DOI 10.26102/2310-6018/2025.48.1.013), which names hybrids as future work. All classes share
//! one state. A take uses the class's own bucket first and the pool for the rest, provided that
//! the pool holds at least the class's floor before each hit that uses the pool. No class is
//! starved, and idle capacity goes to the pool.
//!
//! All arithmetic is integer. Time is counted in ticks: microseconds for windows below a minute,
//! milliseconds below a day, seconds from a day on. One hit is `u = 100·W` credits, W in ticks.
//! `share_i` is the guaranteed share of class i, in percent.
//!
//! ```text
//! total    u·B                 all buckets and the pool together
//! own i    cap share_i·B·W,    refilled with share_i·L credits per tick
//! pool     refilled with the overflow of full class buckets and the unassigned share;
//!          never above room = total − Σ own
//! passes   own ≥ c·u, or pool ≥ rest − last + max(floor, last), where rest = c·u − own and last =
//!          min(rest, u): c hits pass iff c single hits would, one after another
//! P        total − Σ cap or, if that is 0, the most that the pool can hold now: room
//! floor    ⌈floor% of P⌉ in whole hits; if P is room, at most room
//! wait     the first tick at which the refilled pool suffices; none if the pool's room is too
//!          small at that tick, because the check then passes only after other classes take hits
//! refund   by a caller: c·u credits, into the own bucket first; of a recorded charge: c·u − 100·L·(ticks since the charge)
//!          credits, of which the own bucket gets at most what was taken from it, the pool the rest
//! available  number of single hits that would pass, one after another
//! reset    time until every own bucket and the total are full
//! ```
//!
//! The pool is clamped to its room once, at the end of an interval. This has the same result as a
//! clamp at every tick: room only shrinks while buckets refill, so the last clamp is the tightest.
//!
//! Bisection finds the first tick at which the unclamped pool suffices for a charge. Because the
//! room only shrinks, a charge that does not pass at that tick passes at no later tick either, so
//! that tick is the only candidate for the wait. There is one exception: if the unassigned share is
//! smaller than the floor in whole hits, the class's own bucket may cover the charge at a later
//! tick. The wait is then unknown.
//!
//! If a policy change lowers a capacity, stored credits above it are dropped. A state whose number
//! of classes differs from that of the limit is treated as full.
//!
//! Not here: selecting the class of a request (`policy`).

use std::sync::Arc;

use super::hybrid_credits::{HybridCredits, SHARES_TOTAL_PERCENT};
use super::step::{CounterOp, Step, record_charge};
use crate::domain::{ChargeRecord, Hits, Hybrid, Micros, Outcome, Verdict};

/// Stored state of a hybrid limit: the credits in the bucket of each class and in the pool, at the
/// time of the last update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Time of the last update, in ticks (see `HybridCredits::tick`) since the Unix epoch.
    pub(super) last_tick: u64,
    pub(super) pool: u64,
    /// Credits in the guaranteed bucket of each consumer class, in the same order as the limit's
    /// shares.
    pub(super) buckets: Arc<[u64]>,
}

impl State {
    /// Returns the heap memory used by the bucket list, in bytes: its elements and the two
    /// reference counts of the `Arc`.
    pub fn heap_bytes(&self) -> usize {
        2 * size_of::<usize>() + size_of_val::<[u64]>(&self.buckets)
    }
}

/// Applies an operation on behalf of the consumer class in `limit`. Returns the outcome and, if the
/// state changes, the new state.
pub fn apply(state: Option<&State>, limit: &Hybrid, op: CounterOp, now: Micros) -> Step<State> {
    let credits = HybridCredits::new(limit);
    let at = now.0 / credits.tick;
    let (read, stepped_back) = credits.read(state, at);
    let mut after = None;
    let mut wait = Some(0);
    let mut charged = 0;
    match op {
        CounterOp::Refund(cost) => {
            let refunded = cost.min(credits.burst) * credits.unit;
            after = state.map(|_| credits.refund(&read, refunded, 0));
        }
        CounterOp::Take(cost) | CounterOp::Peek(cost) if cost > credits.burst => wait = None,
        CounterOp::Take(cost) | CounterOp::Peek(cost) => {
            let left = credits.take(&read, cost * credits.unit);
            if left.is_none() {
                wait = credits.wait_time(&read, cost * credits.unit);
            } else if matches!(op, CounterOp::Take(_)) {
                (after, charged) = (left, cost);
            }
        }
    }
    let left = after.as_ref().unwrap_or(&read);
    // A refund may have added to the pool.
    let from_pool = u128::from(read.pool.saturating_sub(left.pool));
    // Waits start at the state's time, which a clock that stepped back has to reach first.
    let until = |ticks| Micros(left.last_tick.saturating_add(ticks).saturating_mul(credits.tick));
    Step {
        outcome: Outcome {
            verdict: if wait == Some(0) { Verdict::Pass } else { Verdict::Refuse },
            charged: Hits(charged),
            available: Hits(credits.available(left)),
            held: Hits::ZERO,
            retry_after: wait
                .filter(|wait| *wait > 0)
                .map(|ticks| until(ticks).saturating_sub(now)),
            reset_after: until(credits.ticks_until_full(left)).saturating_sub(now),
            taken: record_charge(charged, now, Micros::ZERO, from_pool),
        },
        write: after.or_else(|| stepped_back.then_some(read)),
        stepped_back,
    }
}

/// Refunds a recorded charge, minus the hits that may have refilled since the charge. Returns the
/// new state, or `None` if nothing is left to refund or if the number of classes has changed since
/// the charge, because the counter then started anew.
pub fn refund(state: &State, limit: &Hybrid, record: &ChargeRecord, now: Micros) -> Option<State> {
    if state.buckets.len() != limit.shares.len() {
        return None;
    }
    let credits = HybridCredits::new(limit);
    let at = now.0 / credits.tick;
    let (read, _) = credits.read(Some(state), at);
    let elapsed = at.saturating_sub(record.at.0 / credits.tick);
    let refilled = elapsed.saturating_mul(SHARES_TOTAL_PERCENT.saturating_mul(limit.hits.0));
    let charged = record.hits.0.min(credits.burst) * credits.unit;
    let back = charged.checked_sub(refilled).filter(|back| *back > 0)?;
    let from_own = u128::from(charged).saturating_sub(record.entry);
    let to_own = u64::try_from(from_own).unwrap_or(u64::MAX).min(back);
    Some(credits.refund(&read, to_own, back - to_own))
}

/// Returns the time at which the pool and the buckets of all classes would be full again if they were
/// empty now.
///
/// The state may be full earlier, but not for the whole limit that this one is a fraction of: a
/// state that fills a tenth leaves the whole nearly empty, and must not expire to a full counter.
pub fn expires_at(state: &State, limit: &Hybrid) -> Micros {
    let credits = HybridCredits::new(limit);
    if state.buckets.len() != limit.shares.len() {
        return Micros::ZERO;
    }
    let ticks = state.last_tick.saturating_add(credits.expiry_ticks());
    Micros(ticks.saturating_mul(credits.tick))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_014_400_000_000;

    fn limit(class: usize, floor_percent: u32) -> Hybrid {
        Hybrid {
            burst: Hits(100),
            expiry_burst: Hits(100),
            hits: Hits(10),
            window: Micros::SECOND,
            shares: [30, 20].into(),
            class,
            floor_percent,
        }
    }

    fn take(state: Option<&State>, limit: &Hybrid, cost: u64, at: u64) -> Step<State> {
        apply(state, limit, CounterOp::Take(cost), Micros(at))
    }

    #[test]
    fn a_class_takes_its_own_share_first_and_then_from_the_pool() {
        let gold = limit(0, 0);
        let step = take(None, &gold, 80, NOW);
        assert_eq!((step.outcome.verdict, step.outcome.available), (Verdict::Pass, Hits(0)));
        let free = take(step.write.as_ref(), &limit(1, 50), 20, NOW);
        assert_eq!(free.outcome.verdict, Verdict::Pass, "a share is there whatever others took");
        let free = take(free.write.as_ref(), &limit(1, 50), 1, NOW);
        assert_eq!(free.outcome.verdict, Verdict::Refuse);
    }

    #[test]
    fn below_its_floor_a_class_gets_nothing_from_the_pool() {
        let free = limit(1, 60);
        let step = take(None, &free, 40, NOW);
        assert_eq!(
            step.outcome.available,
            Hits(1),
            "the pool holds 30 of 50, just its floor of 30"
        );
        let step = take(step.write.as_ref(), &free, 1, NOW);
        assert_eq!(step.outcome.verdict, Verdict::Pass);
        let step = take(step.write.as_ref(), &free, 1, NOW);
        assert_eq!(step.outcome.verdict, Verdict::Refuse);
    }

    #[test]
    fn the_wait_is_exact() {
        for (gold, free) in [(80, 20), (80, 0), (31, 20), (0, 70), (50, 33)] {
            let mut state = None;
            for (class, cost) in [(0, gold), (1, free)] {
                if let Some(written) = take(state.as_ref(), &limit(class, 0), cost, NOW).write {
                    state = Some(written);
                }
            }
            for (class, floor, cost) in
                [(0, 0, 1), (0, 20, 40), (1, 60, 1), (1, 60, 30), (1, 0, 70)]
            {
                let limit = limit(class, floor);
                let Some(wait) = take(state.as_ref(), &limit, cost, NOW).outcome.retry_after else {
                    continue;
                };
                let verdict = |at| take(state.as_ref(), &limit, cost, at).outcome.verdict;
                assert_eq!(verdict(NOW + wait.0), Verdict::Pass);
                assert_eq!(verdict(NOW + wait.0 - 1), Verdict::Refuse);
            }
        }
    }

    #[test]
    fn exactly_the_available_hits_pass_one_by_one() {
        for (class, floor) in [(0, 0), (0, 10), (1, 60), (1, 100)] {
            for spent in [0, 5, 25, 45] {
                let limit = limit(class, floor);
                let mut state = take(None, &limit, spent, NOW).write;
                let at = NOW + 123_456;
                let mut left = apply(state.as_ref(), &limit, CounterOp::Peek(1), Micros(at))
                    .outcome
                    .available
                    .0;
                while left > 0 {
                    let step = take(state.as_ref(), &limit, 1, at);
                    assert_eq!(
                        step.outcome.verdict,
                        Verdict::Pass,
                        "{class} {floor} {spent} {left}"
                    );
                    left -= 1;
                    state = step.write;
                }
                assert_eq!(take(state.as_ref(), &limit, 1, at).outcome.verdict, Verdict::Refuse);
            }
        }
    }

    #[test]
    fn idle_capacity_flows_into_the_pool_up_to_the_total() {
        let gold = limit(0, 0);
        let state = take(None, &gold, 80, NOW).write.unwrap();
        let later = apply(Some(&state), &gold, CounterOp::Peek(1), Micros(NOW + 3_000_000)).outcome;
        // In 3 s 30 hits came back: 9 to gold's own share, 6 that full free did not need and 15
        // that the shares leave over to the pool.
        assert_eq!(later.available, Hits(30));
        let much_later =
            apply(Some(&state), &gold, CounterOp::Peek(1), Micros(NOW + 3_600_000_000)).outcome;
        assert_eq!(much_later.available, Hits(80));
    }
}
