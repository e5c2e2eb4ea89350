//! A real Redis that comes back empty, again and again, in front of one and of two replicas.

#![allow(clippy::disallowed_methods, reason = "waits with a deadline")]

use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::domain::{Limit, Source};
use tidegate::store::{SharedStore as _, Store as _};

use super::redis_outage::{PATIENT, Stack, asked, limit, replica};
use crate::support::heavy;
use crate::support::redis_server::{Server, until};

/// Hits of the limit under test, as many as in "300 an hour". Its window ends in no test.
const LIMIT: u64 = 300;
/// How often Redis comes back empty. Without own charges, each time admits the limit once more.
const RESTARTS: u64 = 6;

/// Restarts Redis without its counters, and waits until every replica has noticed.
async fn restart_empty(server: &mut Server, stacks: &[Arc<Stack>]) {
    let before: Vec<u64> = stacks.iter().map(|stack| stack.remote().counter_losses()).collect();
    server.restart();
    until("the replicas are connected to the new process", || {
        let noticed = |(stack, before): (&Arc<Stack>, &u64)| {
            stack.remote().counter_losses() > *before && stack.remote().is_available()
        };
        stacks.iter().zip(&before).all(noticed)
    })
    .await;
}

/// How many of these calls a replica admits.
async fn admitted(stack: &Stack, calls: u64, limit: &Arc<Limit>) -> u64 {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += u64::from(asked(stack, 1, limit).await.0);
    }
    admitted
}

/// The sum of what the replicas say that they may have admitted beyond the limit.
fn bound(stacks: &[Arc<Stack>]) -> u64 {
    let now = Clock::default().now();
    stacks
        .iter()
        .map(|stack| {
            stack.outage(now);
            stack.over_admitted_max(now)
        })
        .sum()
}

/// Returns how many hits the replicas admit in one window although Redis comes back empty again and
/// again. Checks the metric after every restart.
async fn admitted_over_restarts(replicas: u32, is_killed_first: bool) -> u64 {
    let _turn = heavy::alone().await;
    let mut server = Server::start(&[]);
    let mut stacks = Vec::new();
    for _ in 0..replicas {
        stacks.push(replica(server.port, replicas, PATIENT).await);
    }
    let (limit, mut sum) = (limit(LIMIT), 0);
    for round in 0..RESTARTS {
        for stack in &stacks {
            // More than a share, so that the replicas charge the limit in different parts.
            sum += admitted(stack, 200 + 40 * round, &limit).await;
        }
        if is_killed_first {
            server.kill();
            for stack in &stacks {
                sum += admitted(stack, 20 + 100 * (round % 2), &limit).await;
            }
        }
        restart_empty(&mut server, &stacks).await;
        let beyond = sum.saturating_sub(LIMIT);
        assert!(bound(&stacks) >= beyond, "{} after {sum}", bound(&stacks));
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_restarts_admit_at_most_two_limits_with_one_replica() {
    for is_killed_first in [false, true] {
        let admitted = admitted_over_restarts(1, is_killed_first).await;
        assert!((LIMIT..=2 * LIMIT).contains(&admitted), "{admitted}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_restarts_admit_at_most_three_limits_with_two_replicas() {
    for is_killed_first in [false, true] {
        let admitted = admitted_over_restarts(2, is_killed_first).await;
        assert!((LIMIT..=3 * LIMIT).contains(&admitted), "{admitted}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_counter_starts_again_unless_redis_has_lost_counters() {
    let _turn = heavy::alone().await;
    let mut server = Server::start(&[]);
    let stacks = [replica(server.port, 1, PATIENT).await];
    let limit = limit(LIMIT);
    assert_eq!(admitted(&stacks[0], LIMIT + 10, &limit).await, LIMIT);
    server.ask(&["FLUSHALL"]);
    assert_eq!(asked(&stacks[0], 1, &limit).await, (true, Source::Redis));
    restart_empty(&mut server, &stacks).await;
    assert_eq!(asked(&stacks[0], 1, &limit).await, (false, Source::Cached));
    // Other counters are not affected.
    assert_eq!(asked(&stacks[0], 2, &limit).await, (true, Source::Redis));
}
