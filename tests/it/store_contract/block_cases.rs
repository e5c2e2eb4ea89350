//! Cases about the block of a key after a refusal: the rules and the figures in docs/POLICY.md.

use std::sync::Arc;

use tidegate::domain::{Accounting, Check, CounterKey, Limit, Micros, Op, Outcome, Role};

use super::store_under_test::*;

/// Whether a check passes so many seconds after the start, and its wait in seconds, rounded up.
async fn at<B: Bench>(bench: &B, seconds: f64, check: Check<'_>) -> (bool, u64) {
    bench.set(Micros(START.0 + (seconds * 1e6) as u64));
    let outcome = one(bench, check).await;
    (passes(&outcome), wait(&outcome))
}

fn wait(outcome: &Outcome) -> u64 {
    outcome.retry_after.unwrap_or_default().ceil_secs()
}

/// Ways to count one hit in ten seconds.
fn one_in_ten() -> [Arc<Limit>; 5] {
    [
        window(1, 10 * SECOND),
        bucket(1, 10 * SECOND),
        credits(1, 1, 10 * SECOND),
        sliding_window(1, 10 * SECOND),
        sliding_log(1, 10 * SECOND),
    ]
}

/// The rows of a mitigation timeout: one request per 10 s, and a block of 10 minutes.
pub async fn c18_a_rejection_blocks_and_asking_does_not_prolong_it<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in (0..).zip(one_in_ten()) {
        let limit = blocking(&limit, 600);
        let take = take(bench.key(n), &limit, 1);
        assert_eq!(at(bench, 0.0, take).await, (true, 0), "{limit:?}");
        assert_eq!(at(bench, 3.0, take).await, (false, 600), "{limit:?}");
        assert_eq!(at(bench, 300.0, take).await, (false, 303), "{limit:?}");
        assert_eq!(at(bench, 602.5, take).await, (false, 1), "{limit:?}");
        assert_eq!(at(bench, 603.0, take).await, (true, 0), "{limit:?}");
    }
}

pub async fn c18_a_window_that_is_still_full_blocks_anew<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let limit = blocking(&window(5, MINUTE), 20);
    let take = take(bench.key(0), &limit, 1);
    for _ in 0..5 {
        assert_eq!(at(bench, 0.0, take).await, (true, 0));
    }
    assert_eq!(at(bench, 10.0, take).await, (false, 50), "the window's end is later");
    assert_eq!(at(bench, 31.0, take).await, (false, 29), "blocked until 51, the window ends at 60");
    assert_eq!(at(bench, 60.0, take).await, (true, 0));
}

pub async fn c18_a_peek_that_is_refused_blocks<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let limit = blocking(&window(1, 10 * SECOND), 60);
    let key = bench.key(0);
    assert_eq!(at(bench, 0.0, take(key, &limit, 1)).await, (true, 0));
    assert_eq!(at(bench, 1.0, peek(key, &limit)).await, (false, 60));
    assert_eq!(at(bench, 60.9, take(key, &limit, 1)).await, (false, 1));
    assert_eq!(at(bench, 61.0, take(key, &limit, 1)).await, (true, 0));
}

pub async fn c18_what_cannot_pass_or_may_not_block_blocks_nothing<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let limit = blocking(&window(5, 10 * SECOND), 60);
    let key = bench.key(0);
    let reads = |check| Check { may_block: false, ..check };
    let none = blocking(&window(0, 10 * SECOND), 60);
    for (check, left) in [
        (take(key, &limit, 6), 5),
        (take(bench.key(1), &none, 1), 5),
        (take(key, &limit, 5), 0),
        (reads(take(key, &limit, 1)), 0),
        (reads(peek(key, &limit)), 0),
    ] {
        one(bench, check).await;
        let looked = one(bench, reads(peek(key, &limit))).await;
        assert!(wait(&looked) <= 10, "{check:?}: {looked:?}");
        assert_eq!(looked.available.0, left, "{check:?}");
    }
    // Nor a limit that passes in a rejected call.
    let (other, free) = (bench.key(2), take(bench.key(3), &limit, 1));
    one(bench, take(other, &limit, 5)).await;
    let rejected = apply(bench, &[free, take(other, &limit, 1)]).await;
    assert_eq!(verdicts(&rejected), [true, false]);
    assert_eq!((wait(&rejected[0]), wait(&rejected[1])), (0, 60));
    assert!(passes(&one(bench, free).await));
}

pub async fn c18_while_blocked_only_hits_that_count_in_any_case_are_charged<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    for (n, limit) in (0..).zip(one_in_ten()) {
        let limit = blocking(&limit, 600);
        let (key, debt) = (bench.key(n), always(&limit));
        assert_eq!(at(bench, 0.0, take(key, &limit, 1)).await, (true, 0));
        assert_eq!(at(bench, 1.0, take(key, &limit, 1)).await, (false, 600));
        bench.set(Micros(START.0 + 30 * SECOND));
        let refused = one(bench, take(key, &limit, 1)).await;
        assert_eq!((refused.charged.0, refused.available.0), (0, 0), "{limit:?}");
        let charged = one(bench, take(key, &debt, 1)).await;
        assert_eq!((passes(&charged), charged.charged.0), (false, 1), "{limit:?}");
        assert_eq!(wait(&charged), 571, "{limit:?}");
        // A refund is answered as ever, and does not end the block.
        assert!(passes(&one(bench, refund(key, &limit, 1)).await));
        assert_eq!(wait(&one(bench, take(key, &limit, 1)).await), 571, "{limit:?}");
    }
}

pub async fn c18_later_checks_see_the_block_and_a_rejected_call_keeps_it<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, accounting) in (0..).zip([Accounting::AllOrNothing, Accounting::Independent]) {
        let limit = blocking(&window(5, 10 * SECOND), 60);
        let key = bench.key(n);
        one(bench, take(key, &limit, 3)).await;
        // The same counter twice, and a counter beside it.
        let beside = take(bench.key(9 + n), &limit, 1);
        let checks = [take(key, &limit, 3), take(key, &limit, 1), beside];
        let outcomes = call(bench, accounting, &checks).await;
        assert_eq!(verdicts(&outcomes), [false, false, true], "{accounting:?}");
        assert_eq!([0, 1].map(|at| wait(&outcomes[at])), [60, 60]);
        assert_eq!(wait(&one(bench, take(key, &limit, 1)).await), 60);
    }
}

pub async fn c18_a_lowered_block_ends_earlier_and_a_raised_one_is_for_new_blocks<B: Bench>(
    bench: Arc<B>,
) {
    let bench = &*bench;
    let plain = window(1, 10 * SECOND);
    let of = |seconds| blocking(&plain, seconds);
    let (limit, raised, lowered) = (of(100), of(1_000), of(50));
    let key = bench.key(0);
    one(bench, take(key, &limit, 1)).await;
    one(bench, take(key, &limit, 1)).await;
    assert_eq!(at(bench, 20.0, peek(key, &raised)).await, (false, 80));
    assert_eq!(at(bench, 20.0, peek(key, &lowered)).await, (false, 30));
    assert_eq!(at(bench, 20.0, peek(key, &plain)).await, (true, 0), "without `block`, none");
    assert_eq!(at(bench, 50.0, take(key, &lowered, 1)).await, (true, 0));
    assert_eq!(at(bench, 51.0, peek(key, &limit)).await, (false, 49), "it is still stored");
}

pub async fn c18_a_reset_lifts_the_block<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    for (n, limit) in (0..).zip(one_in_ten()) {
        let limit = blocking(&limit, 600);
        let key = bench.key(n);
        let take = take(key, &limit, 1);
        assert!(passes(&one(bench, take).await));
        assert_eq!(wait(&one(bench, take).await), 600, "{limit:?}");
        let reset = Check { op: Op::RESET, may_block: false, ..with_role(Role::Shadow, take) };
        assert!(passes(&one(bench, reset).await));
        assert!(passes(&one(bench, take).await), "{limit:?}");
    }
}

pub async fn c18_a_shadow_limit_blocks_in_shadow<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let limit = blocking(&window(1, 10 * SECOND), 60);
    let (key, hard) = (bench.key(0), window(9, MINUTE));
    let shadow = with_role(Role::Shadow, take(key, &limit, 1));
    let checks = [shadow, take(bench.key(1), &hard, 1)];
    assert_eq!(verdicts(&apply(bench, &checks).await), [true, true]);
    assert_eq!(verdicts(&apply(bench, &checks).await), [false, true]);
    bench.advance(30 * SECOND);
    let outcomes = apply(bench, &checks).await;
    assert_eq!((verdicts(&outcomes), wait(&outcomes[0])), (vec![false, true], 30));
    assert_eq!(charged(&outcomes), [0, 1]);
}

/// Callers of one key, at the same time: some pass, one begins the block, and nobody prolongs it.
pub async fn c18_racing_callers_begin_one_block<B: Bench>(bench: Arc<B>) {
    let limit = blocking(&bucket(3, SECOND), 60);
    let key: CounterKey = bench.key(0);
    let callers = (0..16).map(|_| {
        let (bench, limit) = (Arc::clone(&bench), Arc::clone(&limit));
        tokio::spawn(async move { passes(&one(&*bench, take(key, &limit, 1)).await) })
    });
    let mut passed = 0;
    for caller in callers.collect::<Vec<_>>() {
        passed += usize::from(caller.await.unwrap());
    }
    assert_eq!(passed, 3);
    bench.advance(59 * SECOND);
    assert_eq!(wait(&one(&*bench, take(key, &limit, 1)).await), 1);
    bench.advance(SECOND);
    assert!(passes(&one(&*bench, take(key, &limit, 1)).await));
}
