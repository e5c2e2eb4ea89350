//! Calls that are not sent to a healthy Redis, because its answer would come too late: their hits are
//! charged there afterwards.

#![allow(clippy::disallowed_methods, reason = "waits with a deadline")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Answer, Call, Check, Hits, Holder, Limit, OnStoreFailure, Op, Source, Verdict,
};
use tidegate::store::Store;
use tokio::task::JoinSet;

use super::fallback::take;
use super::redis_outage::{PATIENT, Stack, asked, limit, limit_with, replica};
use crate::support::heavy;
use crate::support::limits::{self, reserved};
use crate::support::redis_server::{Server, until};

/// Decides a call that has so many milliseconds left. Returns whether each check passes, or `None`
/// where a caller sees an error.
async fn decided(stack: &Stack, checks: &[Check<'_>], millis: u64) -> (Vec<Option<bool>>, Source) {
    let clock = Clock::default();
    let deadline = Some(clock.monotonic_now() + Duration::from_millis(millis));
    let accounting = Accounting::AllOrNothing;
    let call = Call { checks, accounting, now: clock.now(), deadline };
    let answers = stack.apply(&call).await;
    let passes = |answer: &Answer| answer.outcome().map(|outcome| outcome.verdict == Verdict::Pass);
    (answers.each.iter().map(passes).collect(), answers.source)
}

/// Decides a call that has too little time left to be sent.
async fn shed(stack: &Stack, checks: &[Check<'_>]) -> Vec<Option<bool>> {
    let (passes, source) = decided(stack, checks, 1).await;
    assert_eq!(source, Source::Shed);
    passes
}

async fn charged(stack: &Stack, hits: u64) {
    until("the hits are charged", || stack.hits_charged_later() == hits).await;
}

/// Returns how many hits of a limit are left in Redis, as another replica sees it.
async fn left(other: &Stack, identity: u128, limit: &Arc<Limit>) -> u64 {
    let check = Check { op: Op::PEEK, ..take(identity, limit, 1) };
    let answers = other.apply(&limits::call(&[check], Clock::default().now())).await;
    assert_eq!(answers.source, Source::Redis);
    answers.each[0].outcome().unwrap().available.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_of_calls_that_are_not_sent_are_charged_afterwards() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, PATIENT).await;
    let other = replica(server.port, 1, PATIENT).await;
    let limit = limit(10);
    for _ in 0..4 {
        assert_eq!(shed(&stack, &[take(1, &limit, 1)]).await, [Some(true)]);
    }
    charged(&stack, 4).await;
    let mut admitted = 0;
    for _ in 0..10 {
        let (passes, source) = asked(&other, 1, &limit).await;
        assert_eq!(source, Source::Redis);
        admitted += u64::from(passes);
    }
    assert_eq!(admitted, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_not_sent_charges_what_it_would_have_charged() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, PATIENT).await;
    let other = replica(server.port, 1, PATIENT).await;
    let mut expected = 0;
    for (identity, failure, passes, hits) in [
        (1, OnStoreFailure::Local, Some(true), 3),
        (2, OnStoreFailure::Allow, Some(true), 3),
        (3, OnStoreFailure::Deny, Some(false), 0),
        (4, OnStoreFailure::Error, None, 0),
    ] {
        let limit = limit_with(10, failure);
        assert_eq!(shed(&stack, &[take(identity, &limit, 3)]).await, [passes], "{failure:?}");
        expected += hits;
        charged(&stack, expected).await;
        assert_eq!(left(&other, identity, &limit).await, 10 - hits, "{failure:?}");
    }
    // A rejected call charges nothing, and a peek charges nothing either.
    let limits = [limit(10), limit(0)];
    let both = [take(5, &limits[0], 3), take(6, &limits[1], 1)];
    let (passes, _) = decided(&stack, &both, 1).await;
    assert_eq!(passes[1], Some(false));
    let peek = Check { op: Op::PEEK, ..take(5, &limits[0], 1) };
    assert_eq!(shed(&stack, &[peek]).await, [Some(true)]);
    assert_eq!(shed(&stack, &[take(7, &limits[0], 1)]).await, [Some(true)]);
    charged(&stack, expected + 1).await;
    assert_eq!(left(&other, 5, &limits[0]).await, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_beyond_the_limit_leave_the_counter_full() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, PATIENT).await;
    let other = replica(server.port, 1, PATIENT).await;
    let limit = limit(10);
    for _ in 0..8 {
        assert!(asked(&other, 1, &limit).await.0);
    }
    // This replica knows nothing of the eight hits.
    assert_eq!(shed(&stack, &[take(1, &limit, 5)]).await, [Some(true)]);
    charged(&stack, 2).await;
    assert_eq!(left(&other, 1, &limit).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_stall_under_load_only_calls_that_timed_out_can_exceed_the_limit() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    // Its breaker opens after a minute of silence. It would end charges that were sent, whose outcome is then unknown.
    let stack = replica(server.port, 1, 60 * PATIENT).await;
    let limit = limit(1_000);
    let pause = || tokio::time::sleep(Duration::from_millis(1));
    let mut admitted = 0;
    for _ in 0..100 {
        admitted += u64::from(asked(&stack, 1, &limit).await.0);
        pause().await;
    }
    server.freeze();
    let mut calls = JoinSet::new();
    for _ in 0..200 {
        let (stack, limit) = (Arc::clone(&stack), Arc::clone(&limit));
        calls.spawn(async move { decided(&stack, &[take(1, &limit, 1)], 20).await });
        pause().await;
    }
    let stalled = calls.join_all().await;
    server.thaw();
    let passed = stalled.iter().filter(|(passes, _)| passes[0] == Some(true));
    admitted += passed.count() as u64;
    let decided_with = |source| stalled.iter().filter(|(_, other)| *other == source).count() as u64;
    let (shed, timed_out) = (decided_with(Source::Shed), decided_with(Source::Local));
    assert!(shed >= 20, "{shed} of 200 calls were not sent");
    charged(&stack, shed).await;
    for _ in 0..1_000 {
        let (passes, source) = asked(&stack, 1, &limit).await;
        assert!([Source::Redis, Source::Cached].contains(&source), "{source:?}");
        admitted += u64::from(passes);
    }
    // A call that timed out may or may not have been charged.
    assert!((1_000..=1_000 + timed_out).contains(&admitted), "{admitted}, {timed_out} timed out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_that_is_not_sent_is_charged_afterwards_and_ends_its_hold() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, PATIENT).await;
    let other = replica(server.port, 1, PATIENT).await;
    let limit = reserved(&limit(100), 600);
    let with_id = |id, op| Check { op, holder: Some(Holder(id)), ..take(1, &limit, 1) };
    let hold = |id, hits| with_id(id, Op::Hold { cost: Hits(hits), ttl_secs: 600 });
    let settle = |id, hits| with_id(id, Op::Settle { cost: Hits(hits) });
    for id in [1, 2] {
        let (passes, source) = decided(&stack, &[hold(id, 40)], 60_000).await;
        assert_eq!((passes, source), (vec![Some(true)], Source::Redis));
    }
    assert_eq!(left(&other, 1, &limit).await, 20);
    // The second settle of a hold charges nothing, and one of no hits ends its hold.
    for (id, hits) in [(1, 25), (1, 25), (2, 0)] {
        assert_eq!(shed(&stack, &[settle(id, hits)]).await, [Some(true)]);
    }
    let mut available = 0;
    while available != 75 {
        available = left(&other, 1, &limit).await;
        tokio::task::yield_now().await;
    }
    // Redis has charged the hits before this replica has its answer.
    charged(&stack, 25).await;
}
