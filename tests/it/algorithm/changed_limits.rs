//! What passes after a limit has changed: the figures and the bounds that docs/POLICY.md states.

use std::sync::Arc;

use tidegate::algorithm::{State, apply};
use tidegate::domain::{Algorithm, Hits, Limit, Micros, Op, Refill, Verdict};

use crate::support::limits::*;
use crate::support::random::Random;

const DAY: u64 = 24 * HOUR;

/// A counter whose limit can change between calls.
#[derive(Default)]
struct Counter {
    state: Option<State>,
}

impl Counter {
    /// Takes single hits until one is refused; returns how many passed.
    fn exhaust(&mut self, limit: &Limit, now: Micros) -> u64 {
        let mut passed = 0;
        while self.take(limit, 1, now) {
            passed += 1;
        }
        passed
    }

    fn take(&mut self, limit: &Limit, cost: u64, now: Micros) -> bool {
        let step = apply(self.state.as_ref(), limit, Op::Take { cost: Hits(cost) }, now);
        if step.write.is_some() {
            self.state = step.write;
        }
        step.outcome.verdict == Verdict::Pass
    }
}

/// A bucket that refills that many hits a day.
fn daily(burst: u64, hits: u64) -> Arc<Limit> {
    bucket(burst, DAY / hits)
}

#[test]
fn the_figures_in_the_documentation_of_a_changed_bucket_are_right() {
    let now = START;
    let exhausted = |limit: &Limit| {
        let mut counter = Counter::default();
        assert_eq!(counter.exhaust(limit, now), 100);
        counter
    };
    assert_eq!(exhausted(&daily(100, 1_000)).exhaust(&daily(100, 100), now), 90);
    assert_eq!(exhausted(&daily(100, 1_000)).exhaust(&daily(10, 100), now), 0);
    let mut raised = exhausted(&daily(100, 100));
    let faster = daily(100, 1_000);
    let wait = apply(raised.state.as_ref(), &faster, Op::PEEK, now).outcome.retry_after;
    assert_eq!(wait, Some(Micros(86_400_000)));
    // The refusal has cut the debt, and the way back does not restore it.
    assert!(!raised.take(&faster, 1, now));
    assert_eq!(raised.exhaust(&daily(100, 100), now), 90);
}

/// The hits that refill in a time, rounded up.
fn refilled(limit: &Limit, elapsed: u64) -> u64 {
    match &limit.algorithm {
        Algorithm::Bucket(bucket) => match bucket.refill {
            Refill::Arrival { emission } => elapsed.div_ceil(emission.0),
            Refill::Credits { hits, window } => (elapsed * hits.0).div_ceil(window.0),
        },
        other => panic!("{other:?} does not refill"),
    }
}

#[test]
fn after_any_change_a_bucket_admits_at_most_its_new_burst_and_its_new_rate() {
    let mut random = Random::seeded(8);
    for round in 0..3_000 {
        let mut limit = || {
            let burst = 1 + random.below(40);
            match random.below(2) {
                0 => bucket(burst, 1 + random.below(3 * SECOND)),
                _ => credits(burst, 1 + random.below(50), 1 + random.below(20 * SECOND)),
            }
        };
        let (old, new) = (limit(), limit());
        let mut counter = Counter::default();
        let mut now = START.0;
        for _ in 0..random.below(60) {
            now += random.below(SECOND);
            counter.take(&old, 1 + random.below(5), Micros(now));
        }
        let (changed, mut passed) = (now, 0);
        for _ in 0..60 {
            let cost = 1 + random.below(5);
            passed += if counter.take(&new, cost, Micros(now)) { cost } else { 0 };
            let bound = new.capacity().0 + refilled(&new, now - changed);
            assert!(passed <= bound, "{round}: {passed} of {bound}: {old:?} to {new:?}");
            now += random.below(SECOND);
        }
    }
}

#[test]
fn after_any_change_windows_and_logs_keep_their_hits() {
    let mut random = Random::seeded(9);
    for round in 0..3_000 {
        let form = random.below(3);
        let limit = |hits: u64| match form {
            0 => window(hits, MINUTE),
            1 => sliding_window(hits, MINUTE),
            _ => sliding_log(hits, MINUTE),
        };
        let (old, new) = (limit(1 + random.below(40)), limit(1 + random.below(40)));
        let mut counter = Counter::default();
        // All within one window, so that nothing is forgotten in between.
        let mut now = START.0;
        let mut charged = 0;
        for at in 0..60 {
            let cost = 1 + random.below(5);
            let present = if at < 30 { &old } else { &new };
            charged += if counter.take(present, cost, Micros(now)) { cost } else { 0 };
            let bound = old.capacity().max(new.capacity()).0;
            assert!(charged <= bound, "{round}: {charged} of {bound}: {old:?} to {new:?}");
            now += random.below(SECOND / 2);
        }
    }
}
