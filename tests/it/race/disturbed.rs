//! Three real processes on a cluster, random calls, a third of which are cancelled, and give-backs,
//! while counters are flushed, slots move, and masters change: no window of two seconds admits more
//! than docs/REDIS.md states for each fault.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::grpc_client::{CallDescriptor, Client};
use tidegate::clock::Clock;

use super::cancelled::{CALLERS, RULES, descriptor, limit_of, request};
use super::cluster;
use super::replicas::{Replicas, connect};
use crate::support::heavy;
use crate::support::random::Random;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::until;
use crate::support::tidegate_process::metric;

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

fn policy(on_store_failure: &str) -> String {
    let rule = |rule: u64| {
        let limit = limit_of(rule);
        format!(
            "  - key: r{rule}\n    rate_limit: {{unit: second, unit_multiplier: 2, \
             requests_per_unit: {limit}}}\n"
        )
    };
    let rules: String = (0..RULES).map(rule).collect();
    format!("domain: race\non_store_failure: {on_store_failure}\ndescriptors:\n{rules}")
}

/// Hits that were admitted and not given back, for each window and rule.
struct Admitted {
    begun: u64,
    each: Vec<[AtomicI64; RULES as usize]>,
    /// Calls that were rejected.
    rejected: AtomicU64,
    is_over: AtomicBool,
}

impl Admitted {
    fn new() -> Admitted {
        let windows = 0..600;
        let each = windows.map(|_| std::array::from_fn(|_| AtomicI64::new(0))).collect();
        Admitted {
            begun: window(),
            each,
            rejected: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
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
            let Ok(Ok(told)) = sent else { continue };
            self.rejected.fetch_add(u64::from(told.refused), Ordering::SeqCst);
            // A call that a boundary interrupts may count in either window.
            if told.refused || window() != sent_in {
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

/// Windows in which a replica may have admitted hits without Redis, until `is_over`: those between two
/// looks at the metric that counts such hits, if it grew meanwhile.
fn windows_with_local_hits(replicas: &Replicas, is_over: &AtomicBool) -> BTreeSet<u64> {
    let mut windows = BTreeSet::new();
    let (mut last_look, mut last_hits) = (window(), 0);
    loop {
        let (is_last_look, look) = (is_over.load(Ordering::SeqCst), window());
        let hits = |replica| metric(replica, "degraded_admitted_hits_total");
        let hits: u64 = replicas.each.iter().map(hits).sum();
        if hits > last_hits {
            windows.extend(last_look..=window());
        }
        if is_last_look {
            return windows;
        }
        (last_look, last_hits) = (look, hits);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Flushes every node, moves slots, and promotes a replica as planned: only the first loses counters.
/// Returns the windows in which it does.
async fn flush_move_and_promote(cluster: &mut Cluster) -> RangeInclusive<u64> {
    next_windows().await;
    let before = window();
    for node in &cluster.nodes {
        let _replica_refuses = node.try_ask(&["FLUSHALL"]);
    }
    let lossy = before..=window();

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

/// Kills a master, and waits until its replica serves. Returns the windows whose last charges the
/// replica may lack.
async fn kill_a_master(cluster: &mut Cluster) -> RangeInclusive<u64> {
    next_windows().await;
    let before = window();
    cluster.nodes[0].kill();
    let lossy = before..=window();
    until("the replica is promoted", || cluster.owner(1, 0) != 0).await;
    // The replicas learn of the new master later than the cluster's nodes.
    next_windows().await;
    lossy
}

/// Where counters are lost, a window may admit its limit once more; where a replica decides alone, too;
/// and nowhere else.
async fn admit_no_more_than_is_documented(
    on_store_failure: &str,
    disturb: impl AsyncFnOnce(&mut Cluster) -> RangeInclusive<u64>,
) {
    let _turn = heavy::turn().await;
    let (mut cluster, place) = cluster();
    let policy = policy(on_store_failure);
    let replicas = Arc::new(Replicas::start_with(&policy, &place, &["--replicas", "3"]));
    let admitted = Arc::new(Admitted::new());
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let client = connect(&replicas.each[caller % 3]).await;
        let admitted = Arc::clone(&admitted);
        callers.spawn(async move { admitted.call(client, caller as u64 + 1).await });
    }
    let have_ended = Arc::new(AtomicBool::new(false));
    let local = {
        let (replicas, have_ended) = (Arc::clone(&replicas), Arc::clone(&have_ended));
        tokio::task::spawn_blocking(move || windows_with_local_hits(&replicas, &have_ended))
    };
    let lossy = disturb(&mut cluster).await;
    admitted.is_over.store(true, Ordering::SeqCst);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    have_ended.store(true, Ordering::SeqCst);
    let local = local.await.unwrap();
    for (counts, window) in admitted.each.iter().zip(admitted.begun..) {
        let times = 1 + i64::from(lossy.contains(&window)) + i64::from(local.contains(&window));
        for (rule, count) in (0..).zip(counts) {
            let (count, limit) = (count.load(Ordering::SeqCst), limit_of(rule) as i64);
            assert!(
                count <= times * limit,
                "rule {rule}, window {window}: {count} of {times} times {limit}; {lossy:?} {local:?}"
            );
        }
    }
    assert_eq!(local.is_empty(), on_store_failure == "error", "{local:?}");
    assert!(admitted.rejected.load(Ordering::SeqCst) > 0, "no limit was reached");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_flushed_counters_admit_their_limit_twice_and_moved_or_promoted_ones_do_not() {
    admit_no_more_than_is_documented("error", flush_move_and_promote).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_local_decisions_a_killed_master_costs_at_most_its_last_charges() {
    admit_no_more_than_is_documented("error", kill_a_master).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_master_is_replaced_local_decisions_admit_at_most_one_more_limit() {
    admit_no_more_than_is_documented("local", kill_a_master).await;
}
