//! What passes after a limit has changed, or while two limits use one counter: the figures and the
//! bounds that docs/POLICY.md states.

use std::sync::Arc;

use tidegate::algorithm::{State, apply, apply_for, expires_at, refund};
use tidegate::domain::{
    Algorithm, Charge, ChargeRecord, Fraction, Hits, Holder, Limit, Micros, Op, Outcome, Refill,
    Verdict,
};

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
        self.apply(limit, Op::Take { cost: Hits(cost) }, now).verdict == Verdict::Pass
    }

    fn apply(&mut self, limit: &Limit, op: Op, now: Micros) -> Outcome {
        let step = apply(self.state.as_ref(), limit, op, now);
        if step.write.is_some() {
            self.state = step.write;
        }
        step.outcome
    }

    fn refund(&mut self, limit: &Limit, taken: &ChargeRecord, now: Micros) {
        if let Some(state) = &self.state
            && let Some(new) = refund(state, limit, taken, now)
        {
            self.state = Some(new);
        }
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

/// A bucket of 60 hits that refills that many in a window.
fn sixty(window: u64) -> Arc<Limit> {
    bucket(60, window / 60)
}

#[test]
fn the_figures_in_the_documentation_of_a_changed_unit_and_a_refund_are_right() {
    let now = START;
    let mut by_minute = Counter::default();
    assert_eq!(by_minute.exhaust(&sixty(MINUTE), now), 60);
    assert_eq!(by_minute.exhaust(&sixty(HOUR), now), 59);
    let mut by_hour = Counter::default();
    assert_eq!(by_hour.exhaust(&sixty(HOUR), now), 60);
    let refused = by_hour.apply(&sixty(MINUTE), Op::PEEK, now);
    assert_eq!(refused.retry_after, Some(Micros(SECOND)));
    assert!(by_hour.take(&sixty(MINUTE), 1, Micros(now.0 + SECOND)));

    let (large, small) = (bucket(100, SECOND), bucket(10, SECOND));
    let mut owing = Counter::default();
    assert_eq!(owing.exhaust(&large, now), 100);
    owing.apply(&small, Op::Refund { cost: Hits::ONE }, now);
    assert_eq!(available(&owing, &large, now), 1, "99 are owed");
    owing.apply(&small, Op::PEEK, now);
    assert_eq!(available(&owing, &large, now), 90, "a peek cuts the debt");
}

#[test]
fn the_figures_in_the_documentation_of_lowered_windows_and_logs_are_right() {
    let now = START;
    for of in [window, sliding_window, sliding_log] {
        let (high, low) = (of(1_000, MINUTE), of(10, MINUTE));
        let mut counter = Counter::default();
        assert!(counter.take(&high, 900, now));
        assert_eq!(counter.exhaust(&low, now), 0);
        counter.apply(&low, Op::Refund { cost: Hits::ONE }, now);
        assert_eq!(counter.exhaust(&high, now), 101);
    }
    let (high, low) = (sliding_log(60, MINUTE), sliding_log(10, MINUTE));
    let mut log = Counter::default();
    for n in 0..23 {
        assert!(log.take(&high, 1, Micros(now.0 + n)));
    }
    log.apply(&low, Op::Refund { cost: Hits::ONE }, Micros(now.0 + 23));
    assert_eq!(available(&log, &high, Micros(now.0 + 23)), 60 - 22);
    let thirteenth_leaves = now.0 + 12 + MINUTE;
    assert!(!log.take(&low, 1, Micros(thirteenth_leaves - 1)));
    assert!(log.take(&low, 1, Micros(thirteenth_leaves)));
}

#[test]
fn the_figures_in_the_documentation_of_a_changed_hybrid_and_slots_are_right() {
    let now = START;
    let (large, small) = (hybrid(100, 10, SECOND, &[100], 0), hybrid(10, 10, SECOND, &[100], 0));
    let mut classes = Counter::default();
    assert!(classes.take(&large, 55, now));
    assert_eq!(available(&classes, &small, now), 10);
    assert!(classes.take(&small, 1, now));
    assert_eq!(available(&classes, &large, now), 9);
    assert_eq!(expires_at(classes.state.as_ref().unwrap(), &large), Micros(now.0 + 10 * SECOND));

    let (five, two, short) = (slots(5, MINUTE), slots(2, MINUTE), slots(2, 10 * SECOND));
    let mut state = None;
    let ask = |state: &mut Option<State>, limit: &Limit, op, holder| {
        let step = apply_for(state.as_ref(), limit, op, Some(Holder(holder)), now);
        *state = step.write.or(state.take());
        step.outcome
    };
    let one = Op::Take { cost: Hits::ONE };
    for holder in 1..=4 {
        assert_eq!(ask(&mut state, &five, one, holder).verdict, Verdict::Pass);
    }
    for holder in 1..=3 {
        assert_eq!(ask(&mut state, &two, one, 9).verdict, Verdict::Refuse);
        ask(&mut state, &two, Op::Refund { cost: Hits::ONE }, holder);
    }
    assert_eq!(ask(&mut state, &short, Op::PEEK, 9).reset_after, Micros(10 * SECOND));
    assert_eq!(ask(&mut state, &two, one, 9).verdict, Verdict::Pass);
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

/// Several limits of one counter, from the lowest to the highest.
fn limits_of_one_counter(random: &mut Random, kind: u64) -> Vec<Limit> {
    let mut hits: Vec<u64> = (0..3).map(|_| 1 + random.below(40)).collect();
    hits.sort_unstable();
    let refill = 1 + random.below(2 * SECOND);
    let of = |hits: &u64| match kind {
        0 => window(*hits, MINUTE),
        1 => sliding_window(*hits, MINUTE),
        2 => sliding_log(*hits, MINUTE),
        3 => bucket(*hits, refill),
        4 => credits(*hits, 7, refill),
        // One class: what flows into the pool depends on the sizes of all shares.
        _ => hybrid(*hits, 10, SECOND, &[100], 0),
    };
    hits.iter().map(|hits| Limit::clone(&of(hits))).collect()
}

const KINDS: u64 = 6;

fn available(counter: &Counter, limit: &Limit, now: Micros) -> u64 {
    apply(counter.state.as_ref(), limit, Op::PEEK, now).outcome.available.0
}

fn random_op(random: &mut Random) -> Op {
    let cost = Hits(1 + random.below(8));
    match random.below(4) {
        0 => Op::PEEK,
        1 => Op::Refund { cost },
        _ => Op::Take { cost },
    }
}

#[test]
fn a_refund_gives_back_no_more_than_its_hits_under_any_limit() {
    let mut random = Random::seeded(10);
    for round in 0..2_000 {
        let limits = limits_of_one_counter(&mut random, round % KINDS);
        let (mut counter, mut now, mut receipts) = (Counter::default(), START, Vec::new());
        for _ in 0..60 {
            now.0 += random.below(SECOND);
            let limit = &limits[usize::try_from(random.below(3)).unwrap()];
            let op = random_op(&mut random);
            let before: Vec<u64> = limits.iter().map(|l| available(&counter, l, now)).collect();
            let back = match op {
                Op::Refund { cost } if random.one_in(2) || receipts.is_empty() => {
                    counter.apply(limit, op, now);
                    cost.0
                }
                Op::Refund { .. } => {
                    let at = random.below(receipts.len() as u64);
                    let (limit, taken) = receipts.swap_remove(usize::try_from(at).unwrap());
                    counter.refund(&limit, &taken, now);
                    taken.hits.0
                }
                Op::Take { .. } | Op::Peek { .. } | Op::Hold { .. } | Op::Settle { .. } => {
                    let taken = counter.apply(limit, op, now).taken;
                    receipts.extend(taken.map(|taken| (limit.clone(), taken)));
                    continue;
                }
            };
            for (limit, before) in limits.iter().zip(before) {
                let after = available(&counter, limit, now);
                assert!(after <= before + back, "{round}: {before} + {back}: {after}, {limit:?}");
            }
        }
    }
}

#[test]
fn a_call_under_a_lower_limit_changes_nothing_for_a_higher_one_but_its_own_charge() {
    let mut random = Random::seeded(11);
    // A bucket's debt is clamped to a lower burst, and a hybrid keeps what is left of it.
    for round in 0..1_000 {
        let limits = limits_of_one_counter(&mut random, round % 3);
        let (mut counter, mut now) = (Counter::default(), START);
        for _ in 0..60 {
            now.0 += random.below(SECOND);
            let charge = [Charge::Admitted, Charge::Always][usize::from(random.one_in(4))];
            let at = usize::try_from(random.below(3)).unwrap();
            let limit = Limit { charge, ..limits[at].clone() };
            let before: Vec<u64> = limits.iter().map(|l| available(&counter, l, now)).collect();
            let op = match random.below(3) {
                0 => Op::PEEK,
                _ => Op::Take { cost: Hits(1 + random.below(8)) },
            };
            let charged = counter.apply(&limit, op, now).charged.0;
            for (limit, before) in limits.iter().zip(before) {
                let after = available(&counter, limit, now);
                assert_eq!(after, before.saturating_sub(charged), "{round}: {op:?}: {limit:?}");
            }
        }
    }
}

/// As an operator's override of a rule on some replicas only.
#[test]
fn a_call_under_a_scaled_limit_destroys_no_hits_of_the_whole_one() {
    let mut random = Random::seeded(12);
    for round in 0..3_000 {
        let whole = &limits_of_one_counter(&mut random, round % KINDS)[2];
        let percent = 1 + u32::try_from(random.below(99)).unwrap();
        let part = whole.scaled_by(Fraction::from_percent(percent));
        let (mut counter, mut now) = (Counter::default(), START);
        for _ in 0..60 {
            now.0 += random.below(2 * SECOND);
            let limit = if random.one_in(2) { whole } else { &part };
            let before = available(&counter, whole, now);
            let op = match random.below(3) {
                0 => Op::PEEK,
                _ => Op::Take { cost: Hits(1 + random.below(8)) },
            };
            counter.apply(limit, op, now);
            let after = available(&counter, whole, now);
            assert!(after <= before, "{round}: {percent} %: {before} to {after}, {whole:?}");
            // An absent counter is a full one.
            if let Some(state) = &counter.state {
                let ends = expires_at(state, limit).max(now);
                let full = whole.capacity().0;
                let left = available(&counter, whole, ends);
                let all = available(&Counter::default(), whole, ends);
                assert_eq!(left, all, "{round}: {percent} %: {full}, {limit:?}");
            }
        }
    }
}

/// A refusal that is repeated changes no wait, and the wait is exact (contract, 6 and 11).
#[test]
fn a_wait_under_a_lowered_limit_is_exact_however_often_it_is_asked() {
    let mut random = Random::seeded(13);
    for round in 0..2_000 {
        let limits = limits_of_one_counter(&mut random, round % 5);
        let (low, high) = (&limits[0], &limits[2]);
        let (mut counter, mut now) = (Counter::default(), START);
        counter.exhaust(high, now);
        if random.one_in(2) {
            counter.apply(low, Op::Refund { cost: Hits(1 + random.below(9)) }, now);
        }
        now.0 += random.below(SECOND);
        let asks = [Op::PEEK, Op::Take { cost: Hits::ONE }];
        let ask = |random: &mut Random| asks[usize::from(random.one_in(2))];
        let refused = counter.apply(low, ask(&mut random), now);
        let Some(wait) = refused.retry_after else { continue };
        let passes_at = now.0 + wait.0;
        for _ in 0..5 {
            now.0 += random.below(passes_at - now.0);
            let again = counter.apply(low, ask(&mut random), now);
            assert_eq!(again.retry_after, Some(Micros(passes_at - now.0)), "{round}: {low:?}");
        }
        assert!(!counter.take(low, 1, Micros(passes_at - 1)), "{round}: {low:?}");
        assert!(counter.take(low, 1, Micros(passes_at)), "{round}: {low:?}");
    }
}
