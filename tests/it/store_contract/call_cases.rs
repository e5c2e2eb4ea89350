//! Cases about calls of several checks. A name begins with the number of the contract's clause.

use std::sync::Arc;

use tidegate::domain::{Accounting, Algorithm, Micros, Role};

use super::store_under_test::*;

pub async fn c01_a_call_is_decided_at_one_instant<B: Bench>(bench: Arc<B>) {
    let (a, b) = (window(100, MINUTE), bucket(100, MINUTE));
    let mut tasks = Vec::new();
    for task in 0..4_u64 {
        let (bench, a, b) = (Arc::clone(&bench), Arc::clone(&a), Arc::clone(&b));
        tasks.push(tokio::spawn(async move {
            let mut admitted = 0;
            for i in 0..100_u64 {
                let (x, y) = (take(bench.key(1), &a, 1), take(bench.key(2), &b, 1));
                // In either order: a store that locks in the callers' order would get stuck.
                let checks = if (task + i) % 2 == 0 { [x, y] } else { [y, x] };
                let outcomes = apply(&*bench, &checks).await;
                let both = verdicts(&outcomes);
                assert_eq!(both[0], both[1], "the two counters moved together");
                admitted += u64::from(both[0]);
            }
            admitted
        }));
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert_eq!(admitted, 100);
}

pub async fn c01_racing_callers_admit_exactly_the_limit<B: Bench>(bench: Arc<B>) {
    for (n, limit) in of_each_kind(100).into_iter().enumerate() {
        let n = n as u64;
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let (bench, limit) = (Arc::clone(&bench), Arc::clone(&limit));
            tasks.push(tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..50 {
                    let outcome = one(&*bench, take(bench.key(n), &limit, 1)).await;
                    admitted += u64::from(passes(&outcome));
                    tokio::task::yield_now().await;
                }
                admitted
            }));
        }
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.unwrap();
        }
        assert_eq!(admitted, 100, "{limit:?}");
    }
}

pub async fn c02_refunds_come_first_whatever_becomes_of_the_call<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(5).iter().enumerate() {
        let (key, dead) = (bench.key(2 * n as u64), bench.key(2 * n as u64 + 1));
        one(bench, take(key, limit, 5)).await;
        let none = window(0, MINUTE);
        // The take stands before the refund and still sees it; the call is refused.
        let checks = [take(key, limit, 2), refund(key, limit, 2), take(dead, &none, 1)];
        let outcomes = apply(bench, &checks).await;
        assert_eq!(verdicts(&outcomes), [true, true, false]);
        assert_eq!(charged(&outcomes), [0, 0, 0]);
        assert_eq!(left(bench, key, limit).await, 2);
        one(bench, refund(key, limit, u64::MAX)).await;
        assert_eq!(left(bench, key, limit).await, 5, "never above the capacity");
    }
}

pub async fn c02_a_refund_to_an_unknown_counter_has_no_effect<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(5).iter().enumerate() {
        let key = bench.key(n as u64);
        let outcome = one(bench, refund(key, limit, 3)).await;
        assert!(passes(&outcome));
        assert_eq!((outcome.charged.0, outcome.available.0), (0, 5));
        one(bench, take(key, limit, 4)).await;
        assert_eq!(left(bench, key, limit).await, 1);
    }
}

pub async fn c03_required_checks_must_all_pass<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let (wide, narrow) = (window(10, MINUTE), window(1, MINUTE));
    let checks = [take(bench.key(1), &wide, 1), take(bench.key(2), &narrow, 1)];
    assert_eq!(charged(&apply(bench, &checks).await), [1, 1]);
    let second = apply(bench, &checks).await;
    assert_eq!(verdicts(&second), [true, false]);
    assert_eq!(charged(&second), [0, 0]);
}

pub async fn c03_one_quota_check_must_pass<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let (one_hit, two_hits) = (window(1, MINUTE), window(2, MINUTE));
    let checks = [
        with_role(Role::Quota(0), take(bench.key(1), &one_hit, 1)),
        with_role(Role::Quota(1), take(bench.key(2), &two_hits, 1)),
    ];
    assert_eq!(charged(&apply(bench, &checks).await), [1, 1]);
    let second = apply(bench, &checks).await;
    assert_eq!(verdicts(&second), [false, true]);
    assert_eq!(charged(&second), [0, 1], "admitted: what passes is charged, what refuses is not");
    let third = apply(bench, &checks).await;
    assert_eq!(verdicts(&third), [false, false]);
    // A required check beside them: the quota checks must still have one that passes.
    let mixed = [checks[0], checks[1], take(bench.key(3), &two_hits, 1)];
    let fourth = apply(bench, &mixed).await;
    assert_eq!(verdicts(&fourth), [false, false, true]);
    assert_eq!(charged(&fourth), [0, 0, 0]);
}

pub async fn c03_all_checks_of_one_quota_descriptor_must_pass<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let (one_hit, many) = (window(1, MINUTE), window(10, MINUTE));
    // The script of several windows, and the one for any algorithm.
    for (first, other) in [(1, window(10, MINUTE)), (11, sliding_log(10, MINUTE))] {
        let key = |n: u64| bench.key(first + n);
        let checks = [
            with_role(Role::Quota(0), take(key(0), &one_hit, 1)),
            with_role(Role::Quota(0), take(key(1), &many, 1)),
            with_role(Role::Quota(1), take(key(2), &one_hit, 1)),
            with_role(Role::Quota(1), take(key(3), &other, 1)),
        ];
        let half = [take(key(2), &one_hit, 1), take(key(3), &other, 1)];
        assert_eq!(charged(&apply(bench, &half).await), [1, 1]);
        assert_eq!(
            charged(&apply(bench, &checks).await),
            [1, 1, 0, 1],
            "the first descriptor passes"
        );
        let second = apply(bench, &checks).await;
        assert_eq!(verdicts(&second), [false, true, false, true]);
        assert_eq!(charged(&second), [0, 0, 0, 0], "each descriptor has a refused check");
    }
}

pub async fn c03_the_checks_of_a_quota_group_may_stand_anywhere_in_the_call<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    let (one_hit, two_hits, many) = (window(1, MINUTE), window(2, MINUTE), window(10, MINUTE));
    // The script of several windows, and the one for any algorithm.
    for (first, other) in [(1, window(10, MINUTE)), (11, sliding_log(10, MINUTE))] {
        let quota = |n: u64, group: u16, limit| {
            with_role(Role::Quota(group), take(bench.key(first + n), limit, 1))
        };
        let checks = [
            quota(0, 0, &one_hit),
            quota(1, 1, &two_hits),
            quota(2, 2, &many),
            take(bench.key(first + 6), &many, 1),
            quota(3, 1, &many),
            quota(4, 2, &one_hit),
            quota(5, 0, &other),
        ];
        assert_eq!(charged(&apply(bench, &checks).await), [1; 7], "every group passes");
        let second = charged(&apply(bench, &checks).await);
        assert_eq!(second, [0, 1, 1, 1, 1, 0, 1], "the group in the middle still passes");
        assert_eq!(charged(&apply(bench, &checks).await), [0; 7], "each has a refused check");
    }
}

pub async fn c03_shadow_checks_have_no_say<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let (wide, narrow) = (window(10, MINUTE), window(1, MINUTE));
    let checks =
        [with_role(Role::Shadow, take(bench.key(1), &narrow, 1)), take(bench.key(2), &wide, 1)];
    assert_eq!(charged(&apply(bench, &checks).await), [1, 1]);
    let second = apply(bench, &checks).await;
    assert_eq!(verdicts(&second), [false, true]);
    assert_eq!(charged(&second), [0, 1]);
    let alone = one(bench, checks[0]).await;
    assert!(!passes(&alone));
}

pub async fn c04_a_refused_call_charges_nothing<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let none = window(0, MINUTE);
    let limits = of_each_kind(5);
    let mut checks: Vec<_> =
        limits.iter().enumerate().map(|(n, l)| take(bench.key(n as u64), l, 2)).collect();
    checks.insert(1, take(bench.key(9), &none, 1));
    checks.push(with_role(Role::Shadow, take(bench.key(8), &limits[0], 3)));
    let outcomes = apply(bench, &checks).await;
    assert_eq!(verdicts(&outcomes), [true, false, true, true, true, true, true, true]);
    assert_eq!(charged(&outcomes), [0; 8]);
    assert!(outcomes.iter().all(|outcome| outcome.taken.is_none()));
    for (n, limit) in limits.iter().enumerate() {
        assert_eq!(left(bench, bench.key(n as u64), limit).await, 5);
    }
    assert_eq!(left(bench, bench.key(8), &limits[0]).await, 5, "shadow checks included");
}

pub async fn c04_an_admitted_call_charges_every_check_that_passes<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let limits = of_each_kind(5);
    let checks: Vec<_> =
        limits.iter().enumerate().map(|(n, l)| take(bench.key(n as u64), l, 2)).collect();
    let outcomes = apply(bench, &checks).await;
    assert_eq!(charged(&outcomes), [2; 6]);
    assert!(outcomes.iter().all(|o| o.taken.is_some_and(|taken| taken.hits.0 == 2)));
    for (n, limit) in limits.iter().enumerate() {
        assert_eq!(left(bench, bench.key(n as u64), limit).await, 3);
    }
}

pub async fn c05_independent_charges_what_passes_though_the_call_is_refused<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    let none = window(0, MINUTE);
    for (n, limit) in of_each_kind(5).iter().enumerate() {
        let key = bench.key(n as u64);
        let checks = [take(bench.key(9), &none, 1), take(key, limit, 2)];
        let outcomes = call(bench, Accounting::Independent, &checks).await;
        assert_eq!(verdicts(&outcomes), [false, true]);
        assert_eq!(charged(&outcomes), [0, 2]);
        assert_eq!(left(bench, key, limit).await, 3);
    }
}

pub async fn c06_a_refusal_is_free<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(10).iter().enumerate() {
        let key = bench.key(n as u64);
        one(bench, take(key, limit, 9)).await;
        let refused = one(bench, take(key, limit, 2)).await;
        assert!(!passes(&refused));
        assert_eq!((refused.charged.0, refused.taken), (0, None));
        assert_eq!(refused.available.0, 1);
        let independent = call(bench, Accounting::Independent, &[take(key, limit, 2)]).await;
        assert_eq!(charged(&independent), [0]);
        assert!(passes(&one(bench, take(key, limit, 1)).await));
    }
}

pub async fn c07_always_is_charged_whatever_becomes_of_the_call<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let always = [always(&window(5, MINUTE)), always(&bucket(5, 100_000))];
    let (none, plain) = (window(0, MINUTE), window(5, MINUTE));
    for (n, limit) in always.iter().enumerate() {
        let (key, beside) = (bench.key(2 * n as u64), bench.key(2 * n as u64 + 1));
        let checks = [take(beside, &plain, 1), take(key, limit, 4), take(bench.key(99), &none, 1)];
        let outcomes = apply(bench, &checks).await;
        assert_eq!(verdicts(&outcomes), [true, true, false]);
        assert_eq!(charged(&outcomes), [0, 4, 0]);
        assert_eq!(outcomes[1].available.0, 1);
        let over = one(bench, take(key, limit, 3)).await;
        assert!(!passes(&over), "the verdict is given before the charge");
        assert_eq!(over.charged.0, 3);
        assert_eq!(left(bench, beside, &plain).await, 5);
    }
}

pub async fn c07_a_peek_then_a_charge_of_150_on_100_refuses_the_next_peek<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let always = [always(&window(100, MINUTE)), always(&bucket(100, 600_000))];
    for (n, limit) in always.iter().enumerate() {
        let key = bench.key(n as u64);
        assert!(passes(&one(bench, peek(key, limit)).await));
        let charge = one(bench, take(key, limit, 150)).await;
        assert_eq!((passes(&charge), charge.charged.0), (false, 150));
        let next = one(bench, peek(key, limit)).await;
        assert!(!passes(&next));
        bench.advance(next.retry_after.unwrap().0);
        assert!(passes(&one(bench, peek(key, limit)).await));
        bench.set(START);
    }
}

pub async fn c09_the_same_counter_twice_sees_the_first_charge<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(5).iter().enumerate() {
        let key = bench.key(n as u64);
        let twice =
            [take(key, limit, 3), with_role(Role::Shadow, take(key, limit, 3)), peek(key, limit)];
        let outcomes = apply(bench, &twice).await;
        assert_eq!(verdicts(&outcomes), [true, false, true]);
        assert_eq!(charged(&outcomes), [3, 0, 0]);
        assert_eq!(left(bench, key, limit).await, 2);
        let rest = apply(bench, &[take(key, limit, 1), take(key, limit, 1)]).await;
        assert_eq!(charged(&rest), [1, 1]);
        assert_eq!(left(bench, key, limit).await, 0);
    }
}

pub async fn c09_the_same_counter_twice_keeps_nothing_of_a_refused_call<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(5).iter().enumerate() {
        let key = bench.key(n as u64);
        let outcomes = apply(bench, &[take(key, limit, 3), take(key, limit, 3)]).await;
        assert_eq!(verdicts(&outcomes), [true, false]);
        assert_eq!(charged(&outcomes), [0, 0]);
        assert!(outcomes[1].retry_after.is_some_and(|wait| wait.0 > 0));
        assert_eq!(left(bench, key, limit).await, 5);
    }
}

pub async fn c09_a_refund_and_takes_of_one_counter_in_one_call<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in of_each_kind(4).iter().enumerate() {
        let key = bench.key(n as u64);
        bench.set(START);
        one(bench, take(key, limit, 1)).await;
        // The first take of a log has expired, but is still stored.
        bench.advance(2 * MINUTE);
        one(bench, take(key, limit, 1)).await;
        let (give_back, fill) = (refund(key, limit, 1), take(key, limit, 4));
        let above = with_role(Role::Shadow, take(key, limit, 1));
        let outcomes = apply(bench, &[give_back, fill, above]).await;
        assert_eq!(charged(&outcomes), [0, 4, 0]);
        let alone = one(bench, above).await;
        assert_eq!(outcomes[2].retry_after, alone.retry_after, "{limit:?}");
        if let Algorithm::SlidingLog(_) = limit.algorithm {
            assert_eq!(outcomes[2].retry_after, Some(Micros(MINUTE)));
        }
    }
}

pub async fn c13_what_is_left_is_told_as_of_after_the_call<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let none = window(0, MINUTE);
    for (n, limit) in of_each_kind(5).iter().enumerate() {
        let key = bench.key(n as u64);
        let twice = apply(bench, &[take(key, limit, 1), take(key, limit, 2)]).await;
        assert_eq!(twice.iter().map(|o| o.available.0).collect::<Vec<_>>(), [2, 2]);
        let refused = apply(bench, &[take(key, limit, 2), take(bench.key(9), &none, 1)]).await;
        assert_eq!(refused[0].available.0, 2, "nothing was charged");
        assert_eq!(refused[0].reset_after, twice[0].reset_after);
    }
}

pub async fn c13_there_is_one_answer_per_check_in_order<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    assert!(apply(bench, &[]).await.is_empty());
    // As many checks as a call may have, each with a capacity of its own.
    let limits: Vec<_> = (1..=128).map(|capacity| bucket(capacity, SECOND)).collect();
    let checks: Vec<_> = limits.iter().zip(0..).map(|(l, n)| take(bench.key(n), l, 1)).collect();
    let left: Vec<u64> = apply(bench, &checks).await.iter().map(|o| o.available.0).collect();
    assert_eq!(left, (0..128).collect::<Vec<_>>());
}
