//! Three real processes on a cluster, random calls, a third of which are cancelled, and give-backs,
//! while counters are flushed, slots move, and masters change: no window of two seconds admits more
//! than docs/REDIS.md states for each fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::wire::client::{CallDescriptor, Client};

use super::cancelled::{CALLERS, RULES, descriptor, limit_of, request};
use super::cluster;
use super::replicas::{Replicas, connect};
use crate::support::heavy;
use crate::support::random::Random;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::until;

const LENGTH: u64 = 2_000_000;

/// Number of the window that is running. The servers' clock is this machine's.
fn window() -> u64 {
    Clock::System.now().0 / LENGTH
}

/// Waits for the end of the next window, so that faults do not share one.
async fn next_windows() {
    let begun = window();
    until("two windows end", || window() >= begun + 2).await;
}

fn policy() -> String {
    let rule = |rule: u64| {
        let limit = limit_of(rule);
        format!(
            "  - key: r{rule}\n    rate_limit: {{unit: second, unit_multiplier: 2, \
             requests_per_unit: {limit}}}\n"
        )
    };
    let rules: String = (0..RULES).map(rule).collect();
    format!("domain: race\ndescriptors:\n{rules}")
}

/// Hits that were admitted and not given back, for each window and rule.
struct Admitted {
    begun: u64,
    each: Vec<[AtomicI64; RULES as usize]>,
    is_over: AtomicBool,
}

impl Admitted {
    fn new() -> Admitted {
        let windows = 0..600;
        let each = windows.map(|_| std::array::from_fn(|_| AtomicI64::new(0))).collect();
        Admitted { begun: window(), each, is_over: AtomicBool::new(false) }
    }

    fn add(&self, window: u64, rule: u64, hits: i64) {
        let counts = &self.each[(window - self.begun) as usize];
        counts[rule as usize].fetch_add(hits, Ordering::SeqCst);
    }

    /// Random calls until all is over.
    async fn call(&self, mut client: Client, seed: u64) {
        let mut random = Random::seeded(seed);
        while !self.is_over.load(Ordering::SeqCst) {
            let (first, count) = (random.below(RULES), 1 + random.below(RULES));
            let rules: Vec<u64> = (0..count).map(|nth| (first + nth) % RULES).collect();
            let asked = request(rules.iter().map(|rule| descriptor(*rule)).collect());
            let patience = match random.below(3) {
                0 => Duration::from_micros(random.below(3_000)),
                _ => Duration::from_secs(60),
            };
            let sent_in = window();
            let sent = tokio::time::timeout(patience, client.send(&asked)).await;
            // While a master is replaced, Redis cannot decide all calls.
            let is_admitted = sent.is_ok_and(|answer| answer.is_ok_and(|told| !told.refused));
            // A call that a boundary interrupts may count in either window.
            if !is_admitted || window() != sent_in {
                continue;
            }
            rules.iter().for_each(|rule| self.add(sent_in, *rule, 1));
            if random.one_in(4) {
                let back = CallDescriptor { refund: true, ..descriptor(first) };
                let begun = window();
                // Given back even if nobody can say so.
                let _answer = client.send(&request(vec![back])).await;
                for window in begun..=window() {
                    self.add(window, first, -1);
                }
            }
        }
    }
}

/// Flushes every node, moves slots, and promotes a replica as planned: only the first loses counters.
/// Returns the windows in which that may show.
async fn flush_move_and_promote(cluster: &mut Cluster) -> Vec<u64> {
    next_windows().await;
    let before = window();
    for node in &cluster.nodes {
        let _replica_refuses = node.try_ask(&["FLUSHALL"]);
    }
    let lossy = (before..=window()).collect();

    next_windows().await;
    cluster.reshard(1, 2).await;

    // It waits for the replica to have every charge.
    next_windows().await;
    let heir = cluster.replica_of(cluster.owner(0, 0));
    cluster.nodes[heir].ask(&["CLUSTER", "FAILOVER"]);
    until("the replica is promoted", || (0..6).all(|asked| cluster.owner(asked, 0) == heir)).await;
    next_windows().await;
    lossy
}

/// Kills a master, which takes along what its replica has not got.
async fn kill_a_master(cluster: &mut Cluster) -> Vec<u64> {
    next_windows().await;
    let before = window();
    cluster.nodes[0].kill();
    until("the replica is promoted", || cluster.owner(1, 0) != 0).await;
    let lossy = (before..=window()).collect();
    next_windows().await;
    lossy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_moved_and_promoted_counters_admit_no_more_than_is_documented() {
    admit_no_more_than_is_documented(flush_move_and_promote).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_admits_no_more_than_is_documented() {
    admit_no_more_than_is_documented(kill_a_master).await;
}

/// Where counters are lost, a window may admit its limit twice, and nowhere else.
async fn admit_no_more_than_is_documented(disturb: impl AsyncFnOnce(&mut Cluster) -> Vec<u64>) {
    let _turn = heavy::turn().await;
    let (mut cluster, place) = cluster();
    let replicas = Replicas::start(&policy(), &place);
    let admitted = Arc::new(Admitted::new());
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let client = connect(&replicas.each[caller % 3]).await;
        let admitted = Arc::clone(&admitted);
        callers.spawn(async move { admitted.call(client, caller as u64 + 1).await });
    }
    let lossy = disturb(&mut cluster).await;
    admitted.is_over.store(true, Ordering::SeqCst);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    let mut reached = 0;
    for (counts, window) in admitted.each.iter().zip(admitted.begun..) {
        for (rule, count) in (0..).zip(counts) {
            let (count, limit) = (count.load(Ordering::SeqCst), limit_of(rule) as i64);
            let most = if lossy.contains(&window) { 2 * limit } else { limit };
            assert!(count <= most, "rule {rule}, window {window} of {lossy:?}: {count} of {most}");
            reached = reached.max(count * 100 / limit);
        }
    }
    assert!(reached >= 90, "at most {reached} % of a limit were used");
}
