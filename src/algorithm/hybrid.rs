//! Hybrid consumer classes: a guaranteed bucket for each class and a common pool with floors.
//!
//! Extends "Development of API rate limiting methods based on consumer classes" (Seleznev, 2025,
//! DOI 10.26102/2310-6018/2025.48.1.013), which names it as future work. All classes count on one
//! state. A take uses the class's own bucket first and the rest from the pool, if the pool holds,
//! before taking, the class's floor. Nobody is starved, and idle capacity is used.
//!
//! Integers throughout. One hit is `u = 100·W` credits, W in ticks (microseconds for windows below
//! a minute, milliseconds below a day, seconds from a day on):
//!
//! ```text
//! total    u·B                 all buckets and the pool together
//! own i    cap share_i·B·W,    refilled with share_i·L credits a tick
//! pool     gets what a full own bucket would get and what the shares leave over;
//!          never more than room = total − Σ own
//! passes   own ≥ c·u, or pool ≥ max(floor, c·u − own)
//! P        total − Σ cap or, where that is 0, the largest the pool can hold now: room
//! floor    ⌈floor% of P⌉ in whole hits; where P is room, at most that
//! wait     the first tick t at which  pool + inflow(t) ≥ max(floor(t), c·u − own(t));  it is told
//!          only if room(t) is as large, else the check never passes while nobody else calls
//! returns  by the caller all of them; by a receipt c·u − 100·L credits for each tick since; into the
//!          own bucket first, the rest into the pool
//! available  single hits that pass one after the other
//! reset    until every own bucket and all together are full
//! ```
//!
//! One clamp of the pool at the end of an interval is the same as one at every tick of it: room only
//! shrinks with time, so the last clamp is the tightest. And because room shrinks while what the
//! pool would hold without it grows, the first tick found by bisection is the only one that need be
//! looked at.
//!
//! Capacities that lower with a policy cut what is there. A state whose number of classes is not the
//! limit's counts as full.
//!
//! Not here: which class a request belongs to (`policy`).

mod credits;

use std::sync::Arc;

pub(crate) use self::credits::HybridCredits;
use self::credits::PARTS;
use super::Step;
use crate::domain::{ChargeRecord, Hits, Hybrid, Micros, Op, Outcome, Verdict};

/// What every class has, and the pool, in credits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// When it was so, in ticks since the epoch.
    last: u64,
    pool: u64,
    own: Arc<[u64]>,
}

impl State {
    /// Bytes on the heap beside the state itself: an `Arc`'s two counts and its elements.
    pub fn heap_bytes(&self) -> usize {
        2 * size_of::<usize>() + size_of_val::<[u64]>(&self.own)
    }
}

/// Applies an operation of the limit's class.
pub fn apply(state: Option<&State>, limit: &Hybrid, op: Op, now: Micros) -> Step<State> {
    let terms = HybridCredits::of(limit);
    let at = now.0 / terms.tick;
    let (read, stepped_back) = terms.read(state, at);
    let mut after = None;
    let mut wait = Some(0);
    let mut charged = 0;
    match op {
        Op::Refund { cost } => {
            let credits = cost.0.min(terms.burst) * terms.unit;
            after = state.map(|_| terms.returned(&read, limit.class, credits));
        }
        Op::Take { cost } if cost.0 > terms.burst => wait = None,
        Op::Take { cost } if cost.0 > 0 => match terms.take(&read, cost.0 * terms.unit) {
            Some(left) => (after, charged) = (Some(left), cost.0),
            None => wait = terms.wait(&read, cost.0 * terms.unit),
        },
        Op::Take { .. } | Op::Peek => {
            if terms.burst == 0 {
                wait = None;
            } else if terms.take(&read, terms.unit).is_none() {
                wait = terms.wait(&read, terms.unit);
            }
        }
    }
    let left = after.as_ref().unwrap_or(&read);
    // From the state's time: a clock that stepped back has to make up for that first.
    let until = |ticks| Micros(left.last.saturating_add(ticks).saturating_mul(terms.tick));
    Step {
        outcome: Outcome {
            verdict: if wait == Some(0) { Verdict::Pass } else { Verdict::Refuse },
            charged: Hits(charged),
            available: Hits(terms.available(left)),
            retry_after: wait
                .filter(|wait| *wait > 0)
                .map(|ticks| until(ticks).saturating_sub(now)),
            reset_after: until(terms.ticks_until_full(left)).saturating_sub(now),
            taken: (charged > 0).then_some(ChargeRecord {
                hits: Hits(charged),
                at: now,
                window: Micros::ZERO,
                entry: limit.class as u128,
            }),
        },
        write: after.or_else(|| stepped_back.then_some(read)),
        stepped_back,
    }
}

/// Refunds a charge, less the hits that may have refilled since. Returns the new state, or `None` if
/// nothing is left to refund.
pub fn refund(state: &State, limit: &Hybrid, taken: &ChargeRecord, now: Micros) -> Option<State> {
    let terms = HybridCredits::of(limit);
    let at = now.0 / terms.tick;
    let (read, _) = terms.read(Some(state), at);
    let elapsed = at.saturating_sub(taken.at.0 / terms.tick);
    let flowed = elapsed.saturating_mul(PARTS.saturating_mul(limit.hits.0));
    let credits = taken.hits.0.min(terms.burst) * terms.unit;
    let back = credits.checked_sub(flowed).filter(|back| *back > 0)?;
    Some(terms.returned(&read, limit.class, back))
}

/// When everything is full again.
pub fn expires_at(state: &State, limit: &Hybrid) -> Micros {
    let terms = HybridCredits::of(limit);
    if state.own.len() != limit.shares.len() {
        return Micros::ZERO;
    }
    let ticks = state.last.saturating_add(terms.ticks_until_full(state));
    Micros(ticks.saturating_mul(terms.tick))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_014_400_000_000;

    fn limit(class: usize, floor_percent: u32) -> Hybrid {
        Hybrid {
            burst: Hits(100),
            hits: Hits(10),
            window: Micros::SECOND,
            shares: [30, 20].into(),
            class,
            floor_percent,
        }
    }

    fn take(state: Option<&State>, limit: &Hybrid, cost: u64, at: u64) -> Step<State> {
        apply(state, limit, Op::Take { cost: Hits(cost) }, Micros(at))
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
    fn what_is_available_passes_hit_by_hit_and_no_further() {
        for (class, floor) in [(0, 0), (0, 10), (1, 60), (1, 100)] {
            for spent in [0, 5, 25, 45] {
                let limit = limit(class, floor);
                let mut state = take(None, &limit, spent, NOW).write;
                let at = NOW + 123_456;
                let mut left =
                    apply(state.as_ref(), &limit, Op::Peek, Micros(at)).outcome.available.0;
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
    fn idle_capacity_flows_into_the_pool_and_never_above_the_whole() {
        let gold = limit(0, 0);
        let state = take(None, &gold, 80, NOW).write.unwrap();
        let later = apply(Some(&state), &gold, Op::Peek, Micros(NOW + 3_000_000)).outcome;
        // In 3 s 30 hits came back: 9 to gold's own share, 6 that full free did not need and 15
        // that the shares leave over to the pool.
        assert_eq!(later.available, Hits(30));
        let much_later = apply(Some(&state), &gold, Op::Peek, Micros(NOW + 3_600_000_000)).outcome;
        assert_eq!(much_later.available, Hits(80));
    }
}
