//! Cases about a single counter. A name begins with the number of the contract's clause.

use std::sync::Arc;

use tidegate::domain::{Algorithm, Hybrid, Limit, Micros, Receipt, Role, Unit};
use tidegate::store::Store;

use super::store_under_test::*;

pub async fn c08_a_peek_takes_nothing<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(2).iter().enumerate() {
        let key = bench.key(n as u64);
        for left in [2, 1] {
            for _ in 0..3 {
                let looked = one(bench, peek(key, limit)).await;
                assert!(passes(&looked));
                assert_eq!((looked.charged.0, looked.available.0), (0, left));
            }
            one(bench, take(key, limit, 1)).await;
        }
        let at_the_limit = one(bench, peek(key, limit)).await;
        assert!(!passes(&at_the_limit), "one more hit would not pass");
        assert!(at_the_limit.retry_after.is_some());
    }
}

pub async fn c10_too_much_at_once_is_refused_without_a_wait<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(5).iter().enumerate() {
        let key = bench.key(n as u64);
        for cost in [6, 1 << 53, u64::MAX] {
            let refused = one(bench, take(key, limit, cost)).await;
            assert!(!passes(&refused));
            assert_eq!((refused.charged.0, refused.available.0), (0, 5));
            assert_eq!(refused.retry_after, None);
        }
    }
    let nothing = [window(0, MINUTE), bucket(0, SECOND), credits(0, 7, SECOND)];
    for (n, limit) in nothing.iter().enumerate() {
        let key = bench.key(10 + n as u64);
        for check in [take(key, limit, 1), peek(key, limit)] {
            let refused = one(bench, check).await;
            assert!(!passes(&refused));
            assert_eq!((refused.retry_after, refused.available.0), (None, 0));
        }
    }
}

pub async fn c11_waiting_exactly_retry_after_passes_and_one_tick_less_does_not<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(10).iter().enumerate() {
        for cost in [1, 3, 10] {
            bench.set(START);
            bench.advance(12_345);
            let key = bench.key(n as u64 * 100 + cost);
            one(bench, take(key, limit, 10)).await;
            bench.advance(1);
            let refused = one(bench, take(key, limit, cost)).await;
            let wait = refused.retry_after.unwrap();
            bench.advance(wait.0 - 1);
            let early = one(bench, take(key, limit, cost)).await;
            assert!(!passes(&early), "{limit:?} {cost}");
            assert_eq!(early.retry_after, Some(Micros(1)));
            bench.advance(1);
            assert!(passes(&one(bench, take(key, limit, cost)).await), "{limit:?} {cost}");
        }
    }
}

pub async fn c12_reset_is_the_windows_end_or_the_full_bucket<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let [window, bucket, credits, sliding, log, _] = of_each_kind(7);
    bench.advance(20 * SECOND);
    let outcome = one(bench, take(bench.key(1), &window, 1)).await;
    assert_eq!(outcome.reset_after.0, 40 * SECOND);
    assert_eq!(one(bench, peek(bench.key(2), &bucket)).await.reset_after.0, 0);
    let outcome = one(bench, take(bench.key(2), &bucket, 3)).await;
    assert_eq!(outcome.reset_after.0, 300_000);
    let outcome = one(bench, take(bench.key(3), &credits, 1)).await;
    assert_eq!(outcome.reset_after.0, 142_858, "rounded up");
    let outcome = one(bench, take(bench.key(4), &sliding, 1)).await;
    assert_eq!(outcome.reset_after.0, 100 * SECOND, "the end of the next window");
    assert_eq!(one(bench, take(bench.key(5), &log, 1)).await.reset_after.0, MINUTE);
}

/// A slot has a holder; a return that names none frees nothing (contract, 2 and 16).
pub async fn c02_slots_are_returned_by_their_holders_only<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let (key, limit) = (bench.key(1), slots(2, MINUTE));
    let first = held(1, take(key, &limit, 1));
    let receipt = Receipt::for_check(&first, &one(bench, first).await).unwrap();
    assert!(passes(&one(bench, held(2, take(key, &limit, 1))).await));
    one(bench, refund(key, &limit, 2)).await;
    one(bench, held(3, refund(key, &limit, 1))).await;
    let refused = one(bench, held(3, take(key, &limit, 1))).await;
    assert_eq!((passes(&refused), refused.retry_after), (false, Some(Micros(MINUTE))));
    let renewed = one(bench, held(2, take(key, &limit, 1))).await;
    assert_eq!((passes(&renewed), renewed.charged.0), (true, 0), "a renewal takes nothing");
    bench.store().refund(&[receipt]).await;
    assert_eq!(left(bench, key, &limit).await, 1);
    one(bench, held(2, refund(key, &limit, 1))).await;
    assert_eq!(left(bench, key, &limit).await, 2);
}

pub async fn c14_a_changed_limit_meets_the_old_counter<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let key = bench.key(1);
    one(bench, take(key, &window(10, MINUTE), 8)).await;
    assert_eq!(left(bench, key, &window(20, MINUTE)).await, 12, "windows keep their count");
    assert_eq!(left(bench, key, &window(5, MINUTE)).await, 0);
    assert_eq!(left(bench, key, &window(20, MINUTE)).await, 12, "a lower limit cuts nothing");

    let key = bench.key(2);
    one(bench, take(key, &bucket(10, SECOND), 5)).await;
    assert_eq!(left(bench, key, &bucket(100, 100_000)).await, 50, "half used stays half used");
    assert_eq!(left(bench, key, &credits(10, 1, SECOND)).await, 5, "whatever the form");

    let key = bench.key(3);
    one(bench, take(key, &bucket(100, SECOND), 100)).await;
    let small = bucket(10, SECOND);
    let refused = one(bench, take(key, &small, 1)).await;
    assert_eq!(refused.reset_after.0, 10 * SECOND, "clamped to the new capacity");
    assert_eq!(refused.retry_after, Some(Micros(SECOND)));
    bench.advance(SECOND);
    assert!(passes(&one(bench, take(key, &small, 1)).await), "and the clamp is kept");
}

/// A limit in a request, or a scaled one on another replica, is lower than the rule's.
pub async fn c14_a_refund_under_a_lower_limit_gives_back_only_its_own_hits<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    for (n, (high, low)) in (0..).zip(of_each_kind(1_000).iter().zip(of_each_kind(10))) {
        // A hybrid keeps the hits that are left, at most as many as the lower limit has.
        if matches!(high.algorithm, Algorithm::Hybrid(_)) {
            continue;
        }
        let key = bench.key(n);
        let used = taken(bench, key, high, 900).await;
        for _ in 0..2 {
            one(bench, refund(key, &low, 1)).await;
        }
        assert_eq!(left(bench, key, high).await, 102, "{high:?}");
        assert_eq!(charged(&[one(bench, take(key, high, 103)).await]), [0]);
        let more = taken(bench, key, high, 100).await;
        bench.store().refund(&[more]).await;
        assert_eq!(left(bench, key, high).await, 102, "{high:?}");
        bench.store().refund(&[used]).await;
        assert_eq!(left(bench, key, high).await, 1_000, "{high:?}");
    }
}

pub async fn c14_a_call_under_a_lower_limit_cuts_no_count<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let kinds: [fn(u64, u64) -> Arc<Limit>; 3] = [window, sliding_window, sliding_log];
    for (n, kind) in (0..).zip(kinds) {
        let (key, high, low) = (bench.key(n), kind(1_000, MINUTE), kind(10, MINUTE));
        one(bench, take(key, &high, 900)).await;
        let beside = take(bench.key(9 + n), &high, 1);
        for checks in [
            vec![take(key, &low, 1)],
            vec![peek(key, &low)],
            vec![beside, take(key, &low, 1)],
            vec![with_role(Role::Shadow, take(key, &low, 1)), beside],
        ] {
            apply(bench, &checks).await;
            assert_eq!(left(bench, key, &high).await, 100, "{checks:?}");
        }
        one(bench, take(key, &always(&low), 3)).await;
        let debt = if n == 2 { 0 } else { 3 };
        assert_eq!(left(bench, key, &high).await, 100 - debt, "a log owes twice its limit");
    }
}

/// The figures in docs/POLICY.md.
pub async fn c14_a_limit_of_the_request_takes_from_the_counter_of_the_rule<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    let five = "algorithm: token_bucket, unit: minute, requests_per_unit: 5";
    let [rule, four] = &overridden(five, Unit::Minute, &[4])[..] else { panic!() };
    let key = bench.key(0);
    one(bench, take(key, rule, 3)).await;
    let taken = one(bench, take(key, four, 1)).await;
    assert!(passes(&taken));
    assert_eq!(taken.available.0, 0, "36 s of debt and 15 s of 60");
    let refused = one(bench, take(key, rule, 1)).await;
    assert_eq!(refused.retry_after, Some(Micros(3 * SECOND)));

    for kind in ["fixed_window", "sliding_window", "sliding_log"] {
        let hourly = format!("algorithm: {kind}, unit: hour, requests_per_unit: 100");
        let [rule, ten] = &overridden(&hourly, Unit::Hour, &[10])[..] else { panic!() };
        let key = bench.key(1 + kind.len() as u64);
        one(bench, take(key, rule, 50)).await;
        assert!(!passes(&one(bench, take(key, ten, 1)).await), "{kind}");
        assert_eq!(left(bench, key, rule).await, 50, "{kind}");
    }
}

/// Whoever asks last, under whatever number, every other one finds the debt that was stored.
pub async fn c14_a_refusal_under_a_limit_of_the_request_rewrites_nothing<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let numbers = [1, 2, 3, 7, 40, 100, 1_000];
    for (n, keys) in (0..).zip(["algorithm: token_bucket, burst: 35", "algorithm: leaky_bucket"]) {
        let limits = overridden(
            &format!("{keys}, unit: minute, requests_per_unit: 100"),
            Unit::Minute,
            &numbers,
        );
        for (at, taken) in (0..).zip(&limits) {
            let key = bench.key(100 * n + at);
            while passes(&one(bench, take(key, taken, 1)).await) {}
            let full_at = async || one(bench, peek(key, taken)).await.reset_after;
            let owed = full_at().await;
            for asks in &limits[1..] {
                let refused = one(bench, take(key, asks, taken.capacity().0)).await;
                let cost_fits = asks.capacity() >= taken.capacity();
                assert!(!passes(&refused) || cost_fits, "{taken:?}, {asks:?}");
                if !passes(&refused) {
                    assert_eq!(full_at().await, owed, "{taken:?}, {asks:?}");
                }
            }
        }
    }
}

/// Part of a reset by an operator: everything goes, whatever the limit is now.
pub async fn c14_a_refund_of_everything_empties_a_counter_above_its_limit<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, (high, low)) in (0..).zip(of_each_kind(1_000).iter().zip(of_each_kind(10))) {
        let key = bench.key(n);
        one(bench, take(key, high, 1_000)).await;
        one(bench, refund(key, &low, u64::MAX)).await;
        assert_eq!(left(bench, key, &low).await, 10, "{low:?}");
    }
}

pub async fn c15_a_clock_that_steps_back_refills_nothing_twice<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(7).iter().enumerate() {
        bench.set(START);
        bench.advance(2 * SECOND);
        let key = bench.key(n as u64);
        one(bench, take(key, limit, 7)).await;
        for _ in 0..10 {
            bench.set(Micros(START.0 + 2 * SECOND - 140_000));
            assert!(!passes(&one(bench, take(key, limit, 1)).await));
            bench.set(Micros(START.0 + 2 * SECOND));
            assert!(!passes(&one(bench, take(key, limit, 1)).await));
        }
    }
    bench.set(START);
    bench.advance(MINUTE);
    let (key, limit) = (bench.key(9), window(3, MINUTE));
    one(bench, take(key, &limit, 2)).await;
    bench.set(Micros(START.0 + MINUTE - 1));
    assert_eq!(left(bench, key, &limit).await, 1, "over a boundary it stands still");
}

pub async fn c15_a_counter_from_the_far_future_does_not_freeze<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    // (Hits of a log from the far future count as taken now, and no others.)
    let is_log = |limit: &Arc<Limit>| matches!(limit.algorithm, Algorithm::SlidingLog(_));
    let kinds = of_each_kind(7);
    for (n, limit) in kinds.iter().enumerate().filter(|(_, limit)| !is_log(limit)) {
        let key = bench.key(n as u64);
        bench.set(Micros(START.0 + 1_000 * MINUTE));
        one(bench, take(key, limit, 1)).await;
        bench.set(START);
        let refused = one(bench, take(key, limit, 1)).await;
        assert!(!passes(&refused), "a full debt");
        let wait = refused.retry_after.unwrap();
        assert!(wait.0 <= 2 * MINUTE, "{wait:?}");
        bench.advance(wait.0);
        assert!(passes(&one(bench, take(key, limit, 1)).await), "paid from now on");
    }
}

pub async fn c16_a_receipt_is_refunded_into_its_own_window_only<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let (key, limit) = (bench.key(1), window(5, MINUTE));
    let receipt = taken(bench, key, &limit, 3).await;
    assert_eq!(receipt.taken.window, START);
    assert_eq!(receipt.taken.at, START);
    bench.store().refund(std::slice::from_ref(&receipt)).await;
    assert_eq!(left(bench, key, &limit).await, 5);

    let receipt = taken(bench, key, &limit, 3).await;
    bench.advance(MINUTE);
    one(bench, take(key, &limit, 5)).await;
    bench.store().refund(&[receipt]).await;
    assert_eq!(left(bench, key, &limit).await, 0, "another window is not touched");
}

pub async fn c16_a_receipt_is_refunded_less_what_refilled<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let (key, limit) = (bench.key(1), bucket(5, SECOND));
    let receipt = taken(bench, key, &limit, 2).await;
    bench.advance(SECOND);
    taken(bench, key, &limit, 3).await;
    assert_eq!(left(bench, key, &limit).await, 1);
    bench.store().refund(&[receipt]).await;
    assert_eq!(left(bench, key, &limit).await, 2, "one of the two had refilled");

    let receipt = taken(bench, key, &limit, 2).await;
    bench.advance(2 * SECOND);
    let before = left(bench, key, &limit).await;
    bench.store().refund(&[receipt]).await;
    assert_eq!(left(bench, key, &limit).await, before, "all of it had refilled");
}

pub async fn c16_receipts_of_a_call_go_back_together<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let limits = of_each_kind(5);
    let mut receipts = Vec::new();
    for (n, limit) in limits.iter().enumerate() {
        receipts.push(taken(bench, bench.key(n as u64), limit, 5).await);
    }
    let unknown = taken(bench, bench.key(7), &limits[0], 5).await;
    receipts.push(tidegate::domain::Receipt { key: bench.key(8), ..unknown });
    bench.store().refund(&receipts).await;
    for (n, limit) in limits.iter().enumerate() {
        assert_eq!(left(bench, bench.key(n as u64), limit).await, 5);
    }
    assert_eq!(left(bench, bench.key(8), &limits[0]).await, 5);
}

/// As after a call that another node rejects: 3 of the class's own 3 hits and 5 of the pool's.
pub async fn c16_a_receipt_goes_back_into_the_share_and_the_pool_that_it_came_from<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    let class = |class| {
        let mut limit = Limit::clone(&hybrid(10, 600, MINUTE));
        if let Algorithm::Hybrid(hybrid) = &mut limit.algorithm {
            *hybrid = Hybrid { shares: [60, 20].into(), class, ..hybrid.clone() };
        }
        Arc::new(limit)
    };
    let (gold, free) = (class(0), class(1));
    let key = bench.key(1);
    taken(bench, key, &gold, 5).await;
    let before = [left(bench, key, &gold).await, left(bench, key, &free).await];
    assert_eq!(before, [3, 4], "1 of its own, 2 of the pool");
    let receipt = taken(bench, key, &gold, 3).await;
    bench.store().refund(&[receipt]).await;
    let after = [left(bench, key, &gold).await, left(bench, key, &free).await];
    assert_eq!(after, before);
}

pub async fn c17_a_counter_is_kept_until_an_absent_one_means_the_same<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let slow =
        [window(2, 3_600 * SECOND), bucket(2, 1_800 * SECOND), credits(7, 7, 3_600 * SECOND)];
    for (n, limit) in slow.iter().enumerate() {
        bench.set(START);
        let (key, capacity) = (bench.key(n as u64), limit.capacity().0);
        one(bench, take(key, limit, capacity)).await;
        bench.advance(3_600 * SECOND - 1);
        assert!(!passes(&one(bench, take(key, limit, capacity)).await));
        bench.advance(1);
        assert!(passes(&one(bench, take(key, limit, capacity)).await));
        bench.advance(1_000 * 3_600 * SECOND);
        assert_eq!(left(bench, key, limit).await, capacity, "and means nothing any more");
    }
}
