//! Random calls, answered by a store and by the reference store: time that jumps, costs from 0 to
//! huge, refunds, receipts, changed limits, several algorithms in one call.
//!
//! The seeds are fixed, and a failure names its seed.

use std::ops::Range;
use std::sync::Arc;

use tidegate::domain::{Accounting, Algorithm, Call, Charge, Check, Hits, Limit, Micros, Receipt};
use tidegate::store::Store;

use super::reference_store::{Model, sane};
use super::store_under_test::*;
use crate::support::drawn_check::DrawnCheck;
use crate::support::random::Random;

const CALLS: u64 = 250;
const KEYS: u64 = 14;
/// The counter of slots.
const SLOTS: u64 = 10;
/// More keys than all traces begin with.
const KEYS_OF_ALL: u64 = 1 << 20;

pub async fn random_calls_are_answered_as_the_model_answers_them<B: Bench>(bench: Arc<B>) {
    random_calls(&*bench, 0..11).await;
}

/// The same with counters of hits that can be held, and of slots.
pub async fn random_holds_are_answered_as_the_model_answers_them<B: Bench>(bench: Arc<B>) {
    random_calls(&*bench, SLOTS..KEYS).await;
}

async fn random_calls<B: Bench>(bench: &B, counters: Range<u64>) {
    bench.set(START);
    for seed in 1..=bench.traces() {
        let latest = trace(bench, seed, &counters).await;
        // No step back from one trace to the next: what a store makes of its receipts depends on
        // the latest time that it has seen.
        bench.set(Micros(latest.0 + 60 * MINUTE));
    }
}

/// Whatever was taken before, and whatever else the refused call asks for.
pub async fn c04_a_refused_call_leaves_every_counter_as_it_was<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let mut random = Random::seeded(4);
    let limits: Vec<_> = (1..4).flat_map(|n| of_each_kind(n * 4)).collect();
    let none = window(0, MINUTE);
    let looks: Vec<_> = limits.iter().zip(0..).map(|(l, n)| peek(bench.key(n), l)).collect();
    for round in 0..300 {
        bench.advance(random.below(SECOND));
        let mut checks = Vec::new();
        for (limit, n) in limits.iter().zip(0..) {
            if random.one_in(2) {
                checks.push(take(bench.key(n), limit, 1 + random.below(6)));
            }
        }
        apply(bench, &checks).await;
        let before = apply(bench, &looks).await;
        let refuses = take(bench.key(99), &none, 1);
        let place = random.below(checks.len() as u64 + 1);
        checks.insert(usize::try_from(place).unwrap(), refuses);
        let refused = apply(bench, &checks).await;
        assert!(charged(&refused).iter().all(|hits| *hits == 0), "round {round}");
        assert_eq!(apply(bench, &looks).await, before, "round {round}: {checks:#?}");
    }
}

/// One trace, and the latest time in it.
async fn trace<B: Bench>(bench: &B, seed: u64, counters: &Range<u64>) -> Micros {
    let mut random = Random::seeded(seed);
    let mut model = Model::default();
    let mut receipts: Vec<Receipt> = Vec::new();
    let mut latest = bench.now();
    let mut keys: Vec<u64> = (0..KEYS).map(|n| seed * KEYS + n).collect();
    for n in 0..CALLS {
        let before = bench.now();
        bench.set(moved(&mut random, before));
        if bench.now() < before {
            // A counter that is over may be gone, and then a step back does not bring it back: so
            // it is asked no more.
            for (n, key) in (0..).zip(&mut keys) {
                let limit = numbers(n, 0);
                // Holds and leases that have ended may be gone, too.
                let has_holds = limit.reserve.is_some();
                let has_leases = counters.start == n && n == SLOTS;
                if has_holds || has_leases || model.is_over(&peek(bench.key(*key), &limit), before)
                {
                    *key += KEYS_OF_ALL;
                }
            }
        }
        let drawn: Vec<DrawnCheck> = (0..=random.below(4))
            .map(|_| drawn_check(&mut random, bench, &keys, counters))
            .collect();
        let checks: Vec<Check<'_>> = drawn.iter().map(DrawnCheck::check).collect();
        let accounting =
            if random.one_in(4) { Accounting::Independent } else { Accounting::AllOrNothing };
        let outcomes = call(bench, accounting, &checks).await;
        let call = Call { checks: &checks, accounting, now: bench.now(), deadline: None };
        let expected = model.apply(&call);
        assert_eq!(outcomes, expected, "seed {seed}, call {n}: {checks:#?}");
        assert!(outcomes.iter().all(sane), "seed {seed}, call {n}: {outcomes:#?}");
        receipts.extend(checks.iter().zip(&outcomes).filter_map(|(c, o)| Receipt::for_check(c, o)));

        latest = latest.max(bench.now());
        if random.one_in(5) && !receipts.is_empty() && bench.now() == latest {
            let receipt =
                receipts.swap_remove(usize::try_from(random.below(receipts.len() as u64)).unwrap());
            // A store without a clock refunds as of its latest call: so there is one.
            let look = [peek(receipt.key, &receipt.limit)];
            apply(bench, &look).await;
            model.apply(&Call {
                checks: &look,
                accounting: Accounting::AllOrNothing,
                now: bench.now(),
                deadline: None,
            });
            bench.store().refund(std::slice::from_ref(&receipt)).await;
            model.refund(&receipt, bench.now());
        }
    }
    latest
}

fn moved(random: &mut Random, now: Micros) -> Micros {
    Micros(match random.below(100) {
        0..40 => now.0,
        40..70 => now.0 + random.below(200_000),
        70..85 => now.0 + random.below(3 * SECOND),
        85..95 => now.0 + random.below(3 * MINUTE),
        95..98 => now.0 - random.below(2 * SECOND),
        98 => now.0 - random.below(5 * MINUTE),
        _ => now.0 + random.below(10_000 * MINUTE),
    })
}

/// Which of a trace's counters are windows.
fn is_window(n: u64) -> bool {
    n < 6 && n.is_multiple_of(2)
}

/// The n-th counter's limit. A counter keeps its algorithm and its charge; its numbers change now
/// and then. (A hybrid keeps its size: what is there is cut by a smaller one.)
fn numbers(n: u64, variant: u64) -> Arc<Limit> {
    let hits = [5, 3, 20, 0][variant as usize];
    let charge = match n {
        4 | 5 => Charge::Always,
        2 | 6 | 7 | 13 => Charge::Billed,
        _ => Charge::Admitted,
    };
    let limit = match n {
        _ if is_window(n) => window(hits, MINUTE),
        6 => sliding_window(hits, MINUTE),
        7 => sliding_log(hits, MINUTE),
        8 => {
            let mut limit = Limit::clone(&hybrid(10, 600, MINUTE));
            if let Algorithm::Hybrid(hybrid) = &mut limit.algorithm {
                hybrid.shares = [30, 20].into();
                (hybrid.class, hybrid.floor_percent) =
                    [(0, 0), (1, 60), (1, 60), (0, 0)][variant as usize];
            }
            Arc::new(limit)
        }
        9 => {
            let mut limit = Limit::clone(&bucket(10, 70_000));
            if let Algorithm::Bucket(bucket) = &mut limit.algorithm {
                bucket.floor = Hits([0, 3, 7, 10][variant as usize]);
            }
            Arc::new(limit)
        }
        SLOTS => slots(hits, MINUTE),
        11 => reserved(&window(hits, MINUTE), 40),
        12 => reserved(&bucket([10, 3, 20, 6][variant as usize], 7 * SECOND), 40),
        13 => reserved(&credits([20, 5, 9, 7][variant as usize], 7, 40 * SECOND), 3),
        _ => match variant {
            0 if n == 3 => credits(7, 7, SECOND),
            0 | 1 => bucket(10, 70_000),
            2 => credits(4, 3_000_001, 7 * SECOND),
            _ => bucket(3, SECOND),
        },
    };
    Arc::new(Limit { charge, ..Limit::clone(&limit) })
}

fn drawn_check<B: Bench>(
    random: &mut Random,
    bench: &B,
    keys: &[u64],
    counters: &Range<u64>,
) -> DrawnCheck {
    let n = counters.start + random.below(counters.end - counters.start);
    let key = bench.key(keys[usize::try_from(n).unwrap()]);
    // A counter keeps its algorithm and its charge; its numbers change now and then.
    let variant = if random.one_in(10) { random.below(4) } else { 0 };
    let limit = numbers(n, variant);
    let cost = match random.below(20) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << 53,
        3..6 => limit.capacity().0,
        _ => 1 + random.below(4),
    };
    DrawnCheck::new(random, key, limit, Hits(cost))
}
