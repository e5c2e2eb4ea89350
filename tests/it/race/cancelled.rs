//! Three real processes, random calls of one to ten limits, a third of which are cancelled after up to
//! 3 ms, and give-backs: no counter exceeds its limit, and no hit is lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::grpc_client::{CallDescriptor, CallRequest};
use futures_util::stream::{self, StreamExt};

use super::replicas::{Replicas, connect};
use super::{cluster, standalone};
use crate::support::heavy;
use crate::support::proof::times;
use crate::support::random::Random;
use crate::support::tidegate_process::metric;

pub const RULES: u64 = 10;
/// Hits of the narrow rules, which are reached.
const NARROW: u64 = 60;
const LIMITS: [u64; 2] = [NARROW, 100_000];
/// Calls in flight.
pub const CALLERS: usize = 48;

pub fn limit_of(rule: u64) -> u64 {
    LIMITS[usize::from(rule % 2 == 1)]
}

/// Ten rules, with windows of a year, so that no window ends during the test.
fn policy() -> String {
    let rule = |rule: u64| {
        let limit = limit_of(rule);
        format!("  - key: r{rule}\n    rate_limit: {{unit: year, requests_per_unit: {limit}}}\n")
    };
    let rules: String = (0..RULES).map(rule).collect();
    format!("domain: race\ndescriptors:\n{rules}")
}

pub fn descriptor(rule: u64) -> CallDescriptor {
    let entries = vec![(format!("r{rule}").into_bytes(), b"x".to_vec())];
    CallDescriptor { entries, ..CallDescriptor::default() }
}

pub fn request(descriptors: Vec<CallDescriptor>) -> CallRequest {
    CallRequest { domain: "race".to_owned(), descriptors, hits: 1 }
}

/// Hits that each rule's counter holds, by what a check with 0 hits says is left.
async fn used(replicas: &Replicas) -> Vec<u64> {
    let mut client = connect(&replicas.each[0]).await;
    let mut used = Vec::new();
    for rule in 0..RULES {
        let peek = CallDescriptor { hits: Some(0), ..descriptor(rule) };
        let response = client.send(&request(vec![peek])).await.expect("it is decided");
        let left = u64::from(response.statuses[0].remaining);
        used.push(limit_of(rule) - left);
    }
    used
}

/// Sum of a metric over all rules and replicas.
fn of_all(replicas: &Replicas, name: &str) -> u64 {
    replicas.each.iter().map(|replica| metric(replica, name)).sum()
}

/// Hits of the calls that the replicas have answered, less what was given back. A client that leaves
/// when its answer is on its way does not hear it.
fn answered(replicas: &Replicas) -> u64 {
    of_all(replicas, "rule_within_limit_hits_total") - of_all(replicas, "rule_refunded_hits_total")
}

async fn no_hit_is_lost(place: &[String; 2]) {
    let replicas = Replicas::start(&policy(), place);
    let heard: Vec<AtomicU64> = (0..RULES).map(|_| AtomicU64::new(0)).collect();
    let given_back = AtomicU64::new(0);
    let mut clients = Vec::new();
    for caller in 0..CALLERS {
        clients.push((caller as u64, connect(&replicas.each[caller % 3]).await));
    }
    let calls = times(60, 600);
    stream::iter(clients)
        .for_each_concurrent(CALLERS, async |(caller, mut client)| {
            let mut random = Random::seeded(caller + 1);
            for _ in 0..calls {
                let (first, count) = (random.below(RULES), 1 + random.below(RULES));
                let rules: Vec<u64> = (0..count).map(|nth| (first + nth) % RULES).collect();
                let asked = request(rules.iter().map(|rule| descriptor(*rule)).collect());
                let patience = match random.below(3) {
                    0 => Duration::from_micros(random.below(3_000)),
                    _ => Duration::from_secs(60),
                };
                // A future that is dropped resets its stream.
                let sent = tokio::time::timeout(patience, client.send(&asked)).await;
                let Ok(response) = sent else { continue };
                if response.expect("it is decided").refused {
                    continue;
                }
                for rule in &rules {
                    heard[*rule as usize].fetch_add(1, Ordering::SeqCst);
                }
                if random.one_in(4) {
                    let back = CallDescriptor { refund: true, ..descriptor(first) };
                    let response = client.send(&request(vec![back])).await;
                    assert!(!response.expect("it is decided").refused);
                    heard[first as usize].fetch_sub(1, Ordering::SeqCst);
                    given_back.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
        .await;
    assert!(given_back.load(Ordering::SeqCst) > 0);
    let heard: Vec<u64> = heard.iter().map(|hits| hits.load(Ordering::SeqCst)).collect();
    let mut counted = (Vec::new(), 0, 0);
    // Until the last replies to calls whose callers have left are settled.
    for _ in 0..1_000 {
        counted = (
            used(&replicas).await,
            answered(&replicas),
            of_all(&replicas, "redis_unheard_hits_total"),
        );
        if counted.0.iter().sum::<u64>() == counted.1 + counted.2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (used, answered, unheard) = counted;
    let total: u64 = used.iter().sum();
    assert_eq!(total, answered + unheard, "{used:?} {heard:?}, {unheard} unheard");
    for ((rule, used), heard) in (0..).zip(&used).zip(&heard) {
        assert!(heard <= used && *used <= limit_of(rule), "rule {rule}: {used} {heard}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hit_of_cancelled_calls_to_three_processes_on_one_server_is_lost() {
    let _turn = heavy::turn().await;
    let (_server, place) = standalone();
    no_hit_is_lost(&place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hit_of_cancelled_calls_to_three_processes_on_a_cluster_is_lost() {
    let _turn = heavy::turn().await;
    let (_cluster, place) = cluster();
    no_hit_is_lost(&place).await;
}

/// Windows of two seconds: in each, at most the limit is admitted, whatever is cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_of_two_seconds_admits_more_than_its_limit_beside_cancelled_calls() {
    let _turn = heavy::turn().await;
    let (_cluster, place) = cluster();
    let policy = format!(
        "domain: race\ndescriptors:\n  - key: r0\n    rate_limit: {{unit: second, unit_multiplier: 2, \
         requests_per_unit: {NARROW}}}\n  - key: r1\n    rate_limit: {{unit: second, \
         unit_multiplier: 2, requests_per_unit: {NARROW}}}\n"
    );
    let replicas = Replicas::start(&policy, &place);
    let clock = tidegate::clock::Clock::System;
    let window = || clock.now().0 / 2_000_000;
    let begun = window();
    let windows = times(3, 30);
    let counts: Vec<AtomicU64> = (0..windows + 2).map(|_| AtomicU64::new(0)).collect();
    let mut clients = Vec::new();
    for caller in 0..CALLERS {
        clients.push((caller as u64, connect(&replicas.each[caller % 3]).await));
    }
    stream::iter(clients)
        .for_each_concurrent(CALLERS, async |(caller, mut client)| {
            let mut random = Random::seeded(caller + 1);
            while window() < begun + windows {
                let asked = request(vec![descriptor(0), descriptor(1)]);
                let patience = match random.below(3) {
                    0 => Duration::from_micros(random.below(3_000)),
                    _ => Duration::from_secs(60),
                };
                let sent_in = window();
                let sent = tokio::time::timeout(patience, client.send(&asked)).await;
                let is_admitted = sent.is_ok_and(|response| !response.expect("decided").refused);
                // The server's clock is this machine's. A call across a boundary may count in either.
                if is_admitted && window() == sent_in {
                    counts[(sent_in - begun) as usize].fetch_add(1, Ordering::SeqCst);
                }
            }
        })
        .await;
    let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    assert!(counts.iter().all(|count| *count <= NARROW), "{counts:?}");
    assert!(counts.iter().sum::<u64>() > NARROW, "{counts:?}");
}
