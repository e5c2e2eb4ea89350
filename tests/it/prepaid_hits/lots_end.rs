//! What becomes of a lot: it is spent, put back, returned once, or lost.

#![allow(clippy::disallowed_methods, reason = "waits for real time on a real server")]

use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::domain::{Answer, Check, Hits, Micros, Source, Verdict};
use tidegate::store::SharedStore as _;

use super::replica::{HOT, LOTS_ARE_OVER, Replica, server, until_counted};
use crate::support::limits::*;
use crate::support::real_store::{counted, text};
use crate::support::redis_server::{PATIENCE, Server, until};
use crate::support::wait::until as until_some;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_spends_prepaid_hits_looks_like_one_that_redis_decided() {
    let (server, limit) = (server(), prepaid(&window(100_000, HOUR)));
    let replica = Replica::of(&server, 1).await;
    let mut admitted = replica.warm(&limit).await;
    let (before, check) = (replica.stats(), take(key(HOT), &limit, 1));
    let answers = replica.apply(&[check]).await;
    admitted += 1;
    let outcome = *answers.each[0].outcome().unwrap();
    assert_eq!(replica.stats().prepaid_calls - before.prepaid_calls, 1);
    assert_eq!((answers.source, outcome.verdict), (Source::Redis, Verdict::Pass));
    assert_eq!((outcome.charged, outcome.available), (Hits(1), Hits(100_000 - admitted)));
    let end = (Clock::System.now().0 / HOUR + 1) * HOUR;
    let left = end - Clock::System.now().0;
    assert!(outcome.reset_after.0.abs_diff(left) < SECOND, "{outcome:?}");
    until_counted(&server, &check, admitted).await;
    assert!(replica.stats().prepaid_refunded > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_another_limit_rejects_changes_neither_counter() {
    let (server, hot) = (server(), prepaid(&window(100_000, HOUR)));
    let narrow = window(5, HOUR);
    let replica = Replica::without_refusal_cache(&server).await;
    let mut admitted = replica.warm(&hot).await;
    let checks = [take(key(HOT), &hot, 1), take(key(2), &narrow, 1)];
    let mut rejected = 0;
    for _ in 0..400 {
        let answers = replica.apply(&checks).await;
        let [wide, narrow] = [0, 1].map(|at| *answers.each[at].outcome().unwrap());
        assert_eq!(wide.verdict, Verdict::Pass);
        let charged = u64::from(narrow.verdict == Verdict::Pass);
        assert_eq!((wide.charged, narrow.charged), (Hits(charged), Hits(charged)));
        assert_eq!(wide.taken.is_some(), charged > 0);
        (admitted, rejected) = (admitted + charged, rejected + 1 - charged);
        // The counter stays hot although these calls are rejected.
        admitted += replica.hit(&hot).await.charged.0;
    }
    assert_eq!(rejected, 395);
    assert!(replica.stats().prepaid_calls > 100, "{:?}", replica.stats());
    until_counted(&server, &checks[0], admitted).await;
    assert_eq!(counted(&server, &checks[1]), 5);
}

/// Takes all hits that are left in a counter, as another client would. Returns how many it took.
fn exhaust(server: &Server, check: &Check<'_>) -> i64 {
    let left = i64::try_from(check.limit.capacity().0 - counted(server, check)).unwrap();
    server.ask(&["INCRBY", &text(check), &left.to_string()]);
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_sent_again_without_its_lot_spends_each_hit_once() {
    let (server, hot, scarce) =
        (server(), prepaid(&window(100_000, HOUR)), prepaid(&window(50_000, HOUR)));
    let replica = Replica::without_refusal_cache(&server).await;
    let checks = [take(key(HOT), &hot, 1), take(key(2), &scarce, 1)];
    let (mut admitted, mut repeated) = (0, 0);
    for round in 0.. {
        for _ in 0..100 {
            assert_eq!(replica.apply(&checks).await.each[1].verdict(), Some(Verdict::Pass));
            // Its lots end at other times than those of the other counter.
            assert_eq!(replica.hit(&hot).await.verdict, Verdict::Pass);
            admitted += 2;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if repeated >= 5 {
            break;
        }
        assert!(round < 100, "{repeated} lots were refused");
        let taken = exhaust(&server, &checks[1]);
        loop {
            let before = replica.stats();
            if replica.apply(&checks).await.each[1].verdict() != Some(Verdict::Pass) {
                break;
            }
            // Redis was asked for a lot and refused it, and the call spent hits of the last one.
            let now = replica.stats();
            let (has_asked, lots) = (now.script_calls > before.script_calls, now.prepaid_hits);
            repeated += u64::from(has_asked && lots == before.prepaid_hits);
            admitted += 1;
        }
        server.ask(&["INCRBY", &text(&checks[1]), &(-taken).to_string()]);
    }
    until_counted(&server, &checks[0], admitted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_a_lot_is_returned_once() {
    let server = server();
    for (counter, limit) in [
        (HOT, prepaid(&window(100_000, HOUR))),
        // Decided by a script, as are windows shorter than two seconds.
        (HOT, prepaid(&calendar(100_000, tidegate::domain::Unit::Month, "Europe/Berlin"))),
    ] {
        let replica = Replica::of(&server, 2).await;
        let admitted = replica.warm(&limit).await;
        let stats = replica.stats();
        assert!(stats.prepaid_hits >= 2, "{stats:?}");
        until_counted(&server, &take(key(counter), &limit, 1), admitted).await;
        let stats = replica.stats();
        assert_eq!(stats.prepaid_hits - stats.prepaid_refunded, stats.prepaid_calls);
        server.ask(&["FLUSHALL"]);
    }
}

/// The wall clock has moved on and the monotonic clock has not: the machine was suspended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_an_hour_later_by_the_wall_clock_alone_spends_no_prepaid_hit() {
    let (server, limit) = (server(), prepaid(&window(100_000, 1_000_000 * SECOND)));
    let replica = Replica::of(&server, 1).await;
    // A lot lives for 100 ms, so some end by themselves on a slow machine.
    for _ in 0..20 {
        replica.warm(&limit).await;
        let before = replica.stats().prepaid_calls;
        let checks = [take(key(HOT), &limit, 1)];
        let later = call(&checks, Micros(Clock::System.now().0 + HOUR));
        let answers = replica.0.decide(&later).await;
        assert_eq!(answers.each[0].verdict(), Some(Verdict::Pass));
        assert_eq!(replica.stats().prepaid_calls, before, "its window may have ended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_policy_ends_the_lots() {
    let (server, limit) = (server(), prepaid(&window(100_000, HOUR)));
    let replica = Replica::of(&server, 1).await;
    let mut admitted = replica.warm(&limit).await;
    replica.0.retire_policy();
    assert!(!replica.spends(&limit).await, "the lots are over");
    admitted += 1;
    until_counted(&server, &take(key(HOT), &limit, 1), admitted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_ends_the_lots_and_nothing_is_returned() {
    let (server, limit) = (server(), prepaid(&window(100_000, HOUR)));
    let replica = Replica::of(&server, 1).await;
    let admitted = replica.warm(&limit).await;
    let losses = || replica.0.remote().nodes()[0].stats.losses.get();
    let (had, held) = (losses(), replica.held());
    assert!(held > 0);
    server.ask(&["CLIENT", "KILL", "USER", "tidegate"]);
    until("the loss is noticed", || losses() > had).await;
    until("it is connected again", || replica.0.remote().nodes()[0].stats.connected.get() > 0)
        .await;
    assert!(!replica.spends(&limit).await, "another server may have answered");
    tokio::time::sleep(LOTS_ARE_OVER).await;
    let check = take(key(HOT), &limit, 1);
    assert_eq!(counted(&server, &check), admitted + 1 + held, "the lot is lost");
}

#[test]
fn a_replica_that_is_killed_loses_at_most_one_lot() {
    let (server, limit) = (server(), prepaid(&window(400, HOUR)));
    let check = take(key(HOT), &limit, 1);
    // On a busy machine, a lot may end before its replica is killed.
    let (admitted, held) = until_some("a replica to be killed with a lot", || {
        server.ask(&["FLUSHALL"]);
        let killed = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (replica, admitted) = killed.block_on(async {
            let replica = Replica::of(&server, 1).await;
            let admitted = replica.warm(&limit).await;
            (replica, admitted)
        });
        // Afterwards, no task of the runtime runs any more.
        killed.shutdown_timeout(PATIENCE);
        let is_whole = replica.stats().prepaid_refunded == 0;
        is_whole.then(|| (admitted, replica.held()))
    });
    std::thread::sleep(LOTS_ARE_OVER);
    assert_eq!(counted(&server, &check), admitted + held);
    assert!((1..=400 / 4).contains(&held), "{held} hits were lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lot_with_an_unknown_outcome_is_lost_and_the_next_one_is_taken() {
    let (server, limit) = (server(), prepaid(&window(100_000, HOUR)));
    let replica = Replica::with_budget(&server, Duration::from_millis(50)).await;
    let mut admitted = 0;
    let check = take(key(HOT), &limit, 1);
    let hit = async || {
        let checks = [check];
        let call = call(&checks, Clock::System.now());
        replica.0.ask(&call).await.each[0]
    };
    for round in 0..3 {
        let before = replica.stats().prepaid_hits;
        for _ in 0..200 {
            admitted += hit().await.outcome().map_or(0, |outcome| outcome.charged.0);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(replica.stats().prepaid_hits > before, "no lot in round {round}");
        server.freeze();
        while matches!(hit().await, Answer::Decided(_)) {
            admitted += 1;
        }
        server.thaw();
        until("the server answers", || server.try_ask(&["PING"]).is_ok()).await;
    }
    tokio::time::sleep(LOTS_ARE_OVER).await;
    let counted = counted(&server, &check);
    assert!(counted > admitted, "{counted} counted, {admitted} admitted");
}
