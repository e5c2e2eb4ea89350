//! Random calls that take, hold, settle, and refund, answered by a store and by the model of budgets
//! (`budget_model`), which was written from the rules alone; and the rules that need several calls at once.
//!
//! The seeds are fixed, and a failure names its seed.

use std::sync::Arc;

use tidegate::domain::{
    Accounting, Check, CounterKey, Hits, Holder, Limit, Micros, Op, Receipt, Verdict,
};
use tidegate::store::Store;

use super::budget_model::{self, Algorithm, DEFAULT_MAX_IDS, LimitSpec, Model};
use super::store_under_test::*;
use crate::support::random::Random;

const TTL_SECS: u32 = 15;
/// Calls of a trace, of which a bench has as many as of other random calls.
const CALLS: u64 = 65;
/// More keys than other random calls use.
const FIRST_KEY: u64 = 1 << 40;

/// Limits of the model, and the same for the store: two windows, two buckets, and a window without
/// `reserve`.
fn limits() -> [(LimitSpec, Arc<Limit>); 5] {
    let reserve = Some(u64::from(TTL_SECS) * SECOND);
    let spec = |algorithm, reserve| LimitSpec { algorithm, reserve, max_ids: DEFAULT_MAX_IDS };
    let window_spec = |limit, length| Algorithm::FixedWindow { limit, window: length };
    let bucket_spec = |limit, window, burst| Algorithm::TokenBucket { limit, window, burst };
    [
        (spec(window_spec(40, 20 * SECOND), reserve), reserved(&window(40, 20 * SECOND), TTL_SECS)),
        (spec(window_spec(60, HOUR), reserve), reserved(&window(60, HOUR), TTL_SECS)),
        (spec(bucket_spec(1, SECOND, 30), reserve), reserved(&bucket(30, SECOND), TTL_SECS)),
        (
            spec(bucket_spec(7, 3 * SECOND, 20), reserve),
            reserved(&credits(20, 7, 3 * SECOND), TTL_SECS),
        ),
        (spec(window_spec(90, MINUTE), None), window(90, MINUTE)),
    ]
}

const HOUR: u64 = 60 * MINUTE;

/// The check that does to the store what an operation does to the model; `None` if it asks for nothing.
fn check_of<'a>(
    op: &budget_model::Op,
    key: CounterKey,
    limit: &'a Arc<Limit>,
) -> Option<Check<'a>> {
    use budget_model::Op as Asked;
    let holder = |id: &[u8]| Some(Holder(u128::from(id[0])));
    Some(match op {
        Asked::Take { hits: 0, .. } => peek(key, limit),
        Asked::Take { hits, .. } => take(key, limit, *hits),
        Asked::Refund { hits, .. } => refund(key, limit, *hits),
        Asked::Hold { hits: 0, id, .. } if limit.reserve.is_some() => {
            Check { holder: holder(id), ..peek(key, limit) }
        }
        Asked::Hold { hits: 0, .. } => peek(key, limit),
        Asked::Hold { hits, id, .. } if limit.reserve.is_some() => {
            hold(key, limit, id[0].into(), *hits)
        }
        Asked::Hold { hits, .. } => take(key, limit, *hits),
        Asked::Settle { hits, id, .. } => {
            limit.reserve?;
            settle(key, limit, id[0].into(), *hits)
        }
    })
}

fn drawn(random: &mut Random, limit: usize) -> budget_model::Op {
    use budget_model::Op as Asked;
    let hits = if random.one_in(8) { random.below(120) } else { random.below(16) };
    let id = vec![u8::try_from(1 + random.below(9)).unwrap()];
    match random.below(8) {
        0 | 1 => Asked::Take { limit, hits },
        2 => Asked::Refund { limit, hits },
        3 | 4 => Asked::Settle { limit, id, hits },
        _ => Asked::Hold { limit, id, hits },
    }
}

pub async fn random_calls_are_answered_as_the_budget_model_answers_them<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    bench.set(START);
    let limits = limits();
    for seed in 1..=bench.traces() {
        let mut random = Random::seeded(seed);
        let mut model = Model::new(limits.iter().map(|(spec, _)| *spec).collect());
        let key = |limit: usize| bench.key(FIRST_KEY + seed * 5 + limit as u64);
        for n in 0..CALLS {
            bench.advance(match random.below(8) {
                0..3 => 0,
                3 => random.below(20 * SECOND),
                4 => SECOND,
                _ => random.below(2 * SECOND),
            });
            let now = bench.now().0;
            if random.one_in(40) {
                let at = random.below(4) as usize;
                model.reset(at);
                one(bench, check(key(at), &limits[at].1, Op::RESET)).await;
            }
            let mut ops: Vec<_> = (0..5).filter(|_| random.one_in(3)).collect::<Vec<usize>>();
            if ops.is_empty() {
                ops.push(random.below(5) as usize);
            }
            let ops: Vec<_> = ops.into_iter().map(|limit| drawn(&mut random, limit)).collect();
            let expected = model.call(now, &ops);
            let asked: Vec<(usize, Check<'_>)> = (0..)
                .zip(&ops)
                .filter_map(|(at, op)| {
                    Some((at, check_of(op, key(op.limit()), &limits[op.limit()].1)?))
                })
                .collect();
            let checks: Vec<Check<'_>> = asked.iter().map(|(_, check)| *check).collect();
            let outcomes = apply(bench, &checks).await;
            for ((at, _), outcome) in asked.iter().zip(&outcomes) {
                let answer = &expected.ops[*at];
                let got = (
                    outcome.verdict == Verdict::Pass,
                    outcome.available,
                    outcome.retry_after.map(|wait| wait.0),
                );
                let wanted = (answer.passes, Hits(answer.available), answer.retry_after);
                assert_eq!(got, wanted, "seed {seed}, call {n}: {ops:?} at {now}");
            }
        }
        // What is held ends.
        bench.advance(60 * MINUTE);
    }
}

/// Holds of two limits, of which the second is full.
pub async fn a_call_holds_in_all_its_limits_or_in_none<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    bench.set(START);
    let limit = reserved(&window(100, MINUTE), 60);
    let plain = window(100, MINUTE);
    for (n, accounting) in (0..).zip([Accounting::AllOrNothing, Accounting::Independent]) {
        let keys = [0, 1, 2].map(|at| bench.key(FIRST_KEY + 3 * n + at));
        let checks = |hits| {
            [
                hold(keys[0], &limit, 1, hits),
                hold(keys[1], &limit, 1, 2 * hits),
                take(keys[2], &plain, hits),
            ]
        };
        let refused = call(bench, accounting, &checks(51)).await;
        assert_eq!(verdicts(&refused), [true, false, true], "{accounting:?}");
        let taken = if accounting == Accounting::Independent { 51 } else { 0 };
        for (key, limit, expected) in
            [(keys[0], &limit, 100), (keys[1], &limit, 100), (keys[2], &plain, 100 - taken)]
        {
            assert_eq!(left(bench, key, limit).await, expected, "{accounting:?}");
        }
        let held = call(bench, accounting, &checks(40)).await;
        assert_eq!(verdicts(&held), [true; 3], "{accounting:?}");
        assert_eq!(left(bench, keys[0], &limit).await, 60);
        assert_eq!(left(bench, keys[1], &limit).await, 20);
    }
}

/// The client of every hold is lost.
pub async fn a_hold_that_is_never_settled_gives_its_hits_back<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    bench.set(START);
    let (key, limit) = (bench.key(FIRST_KEY), reserved(&bucket(100, HOUR), 60));
    for id in 1..=10 {
        assert!(passes(&one(bench, hold(key, &limit, id, 10)).await));
        bench.advance(SECOND);
    }
    let refused = one(bench, hold(key, &limit, 11, 25)).await;
    // The third hold, which began at 2 s, suffices. The bucket refills too slowly to matter.
    assert_eq!(refused.retry_after, Some(Micros(52 * SECOND)));
    assert_eq!((refused.available, one(bench, peek(key, &limit)).await.held), (Hits(0), Hits(100)));
    bench.advance(60 * SECOND);
    assert_eq!(left(bench, key, &limit).await, 100);
}

/// The hits of the former hold were never charged.
pub async fn the_receipt_of_a_renewed_hold_refunds_nothing_once_it_has_ended<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    bench.set(START);
    let (key, limit) = (bench.key(FIRST_KEY), reserved(&credits(20, 7, 40 * SECOND), 3));
    one(bench, hold(key, &limit, 1, 3)).await;
    let renewal = hold(key, &limit, 1, 3);
    let receipt = Receipt::for_check(&renewal, &one(bench, renewal).await).expect("it holds");
    bench.advance(4 * SECOND);
    assert!(passes(&one(bench, take(key, &limit, 20)).await));
    bench.store().refund(&[receipt]).await;
    assert_eq!(left(bench, key, &limit).await, 0);
}

/// With as many ids as a counter has room for.
pub async fn ten_thousand_holds_are_the_most<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    bench.set(START);
    let (key, limit) = (bench.key(FIRST_KEY), reserved(&window(1_000_000, HOUR), 60));
    for first in (0..10_000_u64).step_by(250) {
        let checks: Vec<Check<'_>> =
            (1..=250).map(|n| hold(key, &limit, (first + n).into(), 3)).collect();
        assert!(apply(bench, &checks).await.iter().all(passes));
    }
    bench.advance(SECOND);
    let another = hold(key, &limit, 20_000, 1);
    let refused = one(bench, another).await;
    assert!(!passes(&refused));
    assert_eq!(refused.retry_after, Some(Micros(59 * SECOND)));
    assert!(passes(&one(bench, hold(key, &limit, 1, 5)).await), "a renewal needs no room");
    assert_eq!(left(bench, key, &limit).await, 1_000_000 - 30_002);
    one(bench, settle(key, &limit, 77, 2)).await;
    assert!(passes(&one(bench, another).await), "77 is forgotten");
    assert_eq!(one(bench, settle(key, &limit, 77, 2)).await.charged, Hits(2), "so this is a bill");
    assert!(!passes(&one(bench, hold(key, &limit, 20_001, 1)).await));
    bench.advance(60 * SECOND);
    assert_eq!(left(bench, key, &limit).await, 1_000_000 - 4);
}
