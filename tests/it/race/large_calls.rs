//! Calls of many descriptors are decided right, in memory, in Redis, and on a Cluster.

use std::time::Duration;

use crate::support::grpc_client::{CallDescriptor, CallRequest, CallResponse, Client};

use super::bills::PATIENT;
use crate::support::http::get;
use crate::support::paired_waits::{self, PAIRS, connect};
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::Tidegate;
use crate::support::{heavy, proof};

/// Two kinds of limit and of algorithm, so that calls of one kind and of both take all scripts.
const POLICY: &str = "
domain: edge
descriptors:
  - key: window
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 3}
  - key: log
    rate_limit: {algorithm: sliding_log, unit: day, requests_per_unit: 3}
  - key: several
    rate_limits:
      - {name: one, unit: year, requests_per_unit: 3}
      - {name: other, unit: year, requests_per_unit: 3}
";

/// One descriptor for each value from 0 on, of these keys in turn.
fn descriptors(keys: &[&str], count: usize) -> Vec<CallDescriptor> {
    (0..count)
        .map(|value| {
            let key = keys[value % keys.len()].as_bytes().to_vec();
            let entries = vec![(key, value.to_string().into_bytes())];
            CallDescriptor { entries, ..CallDescriptor::default() }
        })
        .collect()
}

async fn send(client: &mut Client, descriptors: Vec<CallDescriptor>) -> CallResponse {
    let request = CallRequest { domain: "edge".to_owned(), descriptors, hits: 0 };
    client.send(&request).await.expect("the call is decided")
}

fn remaining(response: &CallResponse) -> Vec<u32> {
    response.statuses.iter().map(|status| status.remaining).collect()
}

/// A call of so many descriptors charges each counter once; one whose limit is reached rejects the
/// next call, which then charges none of them.
async fn many_are_decided_as_one_would_be(serving: &Tidegate, keys: &[&str], count: usize) {
    let mut client = connect(serving).await;
    let all = || descriptors(keys, count);
    let first = send(&mut client, all()).await;
    assert!(!first.refused);
    assert_eq!(remaining(&first), vec![2; count]);
    let last = all().split_off(count - 1);
    for _ in 0..2 {
        assert!(!send(&mut client, last.clone()).await.refused);
    }
    let rejected = send(&mut client, all()).await;
    assert!(rejected.refused);
    let refused: Vec<usize> = (0..count).filter(|at| rejected.statuses[*at].refused).collect();
    assert_eq!(refused, [count - 1]);
    // The same values once more but the last: each counter was charged once so far.
    let others = send(&mut client, descriptors(keys, count - 1)).await;
    assert!(!others.refused);
    assert_eq!(remaining(&others), vec![1; count - 1]);
}

/// A log takes four times the work of a window, so fewer of them fit into a call.
async fn calls_of_each_kind(flags: &[&str]) {
    for (keys, count) in [
        (&["window"][..], 2_048),
        (&["bucket", "window"], 1_024),
        (&["log", "window", "bucket"], 984),
    ] {
        let serving = Tidegate::policy(POLICY, flags);
        many_are_decided_as_one_would_be(&serving, keys, count).await;
    }
}

#[tokio::test]
async fn calls_of_2_048_descriptors_are_decided_in_memory() {
    calls_of_each_kind(&[]).await;
}

#[tokio::test]
async fn calls_of_2_048_descriptors_are_decided_in_redis() {
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    for (prefix, keys, count) in [
        ("a", &["window"][..], 2_048),
        ("b", &["bucket", "window"], 1_024),
        ("c", &["log", "window", "bucket"], 984),
    ] {
        let flags = ["--redis-url", &url, "--cache-key-prefix", prefix];
        let serving = Tidegate::policy(POLICY, &[&flags, PATIENT].concat());
        many_are_decided_as_one_would_be(&serving, keys, count).await;
    }
}

#[tokio::test]
async fn calls_of_1_024_descriptors_are_decided_on_a_cluster() {
    let cluster = Cluster::start(&[]);
    let url = format!("127.0.0.1:{}", cluster.nodes[0].port);
    let flags = ["--redis-type", "cluster", "--redis-url", &url, "--redis-pool-size", "8"];
    let serving = Tidegate::policy(POLICY, &[&flags, PATIENT].concat());
    many_are_decided_as_one_would_be(&serving, &["window"], 1_024).await;
}

#[tokio::test]
async fn a_call_beyond_the_bounds_is_invalid_and_counted_by_its_reason() {
    let serving = Tidegate::policy(POLICY, &["--descriptors", "300", "--checks", "400"]);
    let mut client = connect(&serving).await;
    let mut status = async |descriptors: Vec<CallDescriptor>| {
        let request = CallRequest { domain: "edge".to_owned(), descriptors, hits: 0 };
        client.send(&request).await.map(|_| ()).map_err(|error| error.to_string())
    };
    assert!(status(descriptors(&["window"], 301)).await.unwrap_err().contains("at most 300"));
    let mut deep = descriptors(&["window"], 1);
    deep[0].entries = vec![(b"k".to_vec(), b"v".to_vec()); 161];
    assert!(status(deep).await.unwrap_err().contains("at most 160"));
    // Two checks each.
    let error = status(descriptors(&["several"], 201)).await.unwrap_err();
    assert!(error.contains("more than 400 checks"), "{error}");
    assert_eq!(status(descriptors(&["several"], 200)).await, Ok(()));
    let metrics = get(serving.port("http"), "/metrics").body;
    for (reason, count) in [("descriptors", 1), ("entries", 1), ("checks", 1), ("fields", 0)] {
        let line = format!("tidegate_invalid_calls_total{{reason=\"{reason}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

/// How many times as long the slowest hundredth of small calls may take while one call of 1,024
/// descriptors is sent each second.
const P99_TIMES_MAX: u32 = 2;

/// How many large calls are sent while small ones are measured, one a second.
fn large_calls() -> u64 {
    proof::times(1, 3)
}

async fn a_large_call_a_second_does_not_delay_others(what: &str, flags: &[&str]) {
    const LARGE: &str = "
domain: edge
descriptors:
  - key: window
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: client
    rate_limit: {unit: year, requests_per_unit: 4000000000}
";
    let serving = Tidegate::policy(LARGE, flags);
    let mut client = connect(&serving).await;
    let mut pairs = Vec::new();
    let measured = Duration::from_secs(large_calls());
    for _ in 0..PAIRS {
        let before = paired_waits::p99_of_calls(&serving, "edge", measured).await;
        let large = async {
            for _ in 0..large_calls() {
                assert!(!send(&mut client, descriptors(&["window"], 1_024)).await.refused);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let (beside, ()) =
            tokio::join!(paired_waits::p99_of_calls(&serving, "edge", measured), large);
        pairs.push((before, beside));
    }
    let (before, beside) = paired_waits::medians(what, &pairs);
    if proof::judges_times() {
        assert!(beside <= before * P99_TIMES_MAX, "{what}: {before:?} before, {beside:?} beside");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_calls_do_not_delay_small_ones_in_memory() {
    let _alone = heavy::alone().await;
    a_large_call_a_second_does_not_delay_others("1,024 descriptors, memory", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_calls_do_not_delay_small_ones_in_redis() {
    let _alone = heavy::alone().await;
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    let flags = [&["--redis-url", &url][..], PATIENT].concat();
    a_large_call_a_second_does_not_delay_others("1,024 descriptors, Redis", &flags).await;
}

/// As Envoy Gateway writes them: one rule below another key each, the tightest in the middle.
#[tokio::test]
async fn the_tightest_of_256_rules_on_a_route_rejects_the_call() {
    let rule = |n: u32| {
        let limit = if n == 100 { 3 } else { 1_000 + n };
        format!(
            "      - {{key: rule-{n}-match--1, value: rule-{n}-match--1, rate_limit: {{name: \
             rule-{n}, unit: year, requests_per_unit: {limit}}}}}\n"
        )
    };
    let rules: String = (0..256).map(rule).collect();
    let policy = format!(
        "domain: edge\ndescriptors:\n  - key: route\n    value: route\n    descriptors:\n{rules}"
    );
    let serving = Tidegate::policy(&policy, &[]);
    let mut client = connect(&serving).await;
    let pair = |text: String| (text.clone().into_bytes(), text.into_bytes());
    let descriptor = |n| CallDescriptor {
        entries: vec![pair("route".to_owned()), pair(format!("rule-{n}-match--1"))],
        ..CallDescriptor::default()
    };
    for left in [2, 1, 0] {
        let response = send(&mut client, (0..256).map(descriptor).collect()).await;
        assert!(!response.refused);
        assert_eq!(response.statuses[100].remaining, left);
    }
    let rejected = send(&mut client, (0..256).map(descriptor).collect()).await;
    assert!(rejected.refused);
    let limited_by = &rejected.metadata.as_ref().unwrap()["tidegate"]["limited_by"];
    assert_eq!(limited_by, "rule-100");
}
