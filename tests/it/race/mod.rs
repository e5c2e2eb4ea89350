//! Limits are exact under concurrency: 64 callers on each of three real processes race for one
//! limit, over gRPC, on one Redis server and on a cluster.
//!
//! The store's budget is a minute, and every answer must come from Redis, which a refusal's
//! metadata and each process's metrics prove. One run in `make test`, ten in `make proof`.
//!
//! `bills`: hits that were used already count beyond a limit, also in parallel. `large_calls`: many
//! descriptors in a call. `cancelled`: callers that leave, and give-backs; `disturbed`:
//! the same while the cluster loses keys, masters, and slots.
//!
//! Not here: other faults (`topology`).

mod bills;
mod cancelled;
mod disturbed;
mod large_calls;
mod replicas;

use crate::support::acl;
use crate::support::heavy;
use crate::support::proof;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::{Server, until};
use replicas::{LIMIT, RaceRun, Replicas};

/// Limits of one counter each; `wide` of those that are not reached, and of those that are.
fn policy(hash_tag: &str, wide: u64) -> String {
    format!(
        "domain: race\n{hash_tag}descriptors:\n  - key: run\n    descriptors:\n      \
         - key: narrow\n        rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n      \
         - key: wide\n        rate_limit: {{unit: year, requests_per_unit: {wide}}}\n"
    )
}

fn runs() -> u64 {
    proof::times(1, 10)
}

fn standalone() -> (Server, [String; 2]) {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let place = ["single".to_owned(), format!("127.0.0.1:{}", server.port)];
    (server, place)
}

fn cluster() -> (Cluster, [String; 2]) {
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let place = ["cluster".to_owned(), format!("127.0.0.1:{}", cluster.nodes[2].port)];
    (cluster, place)
}

/// Exactly the limit is admitted, and every counter holds exactly what was admitted.
async fn exact(
    replicas: &Replicas,
    counters: &'static [&'static str],
    count: impl Fn(&str) -> u64,
) {
    for run in 0..runs() {
        let asked = RaceRun { run, counters };
        let admitted = replicas.storm(&asked).await;
        assert_eq!(admitted, LIMIT, "run {run}");
        for key in replicas.keys(&asked) {
            assert_eq!(count(&key), LIMIT, "run {run}: a refused call left something in {key}");
        }
        println!("run {run}: {admitted} admitted");
    }
    replicas.assert_all_from_redis().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_on_one_server_admits_exactly_its_limit() {
    let _turn = heavy::turn().await;
    let (server, place) = standalone();
    let replicas = Replicas::start(&policy("", 2 * LIMIT), &place);
    exact(&replicas, &["narrow"], |key| hits(server.count(key))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_keys_on_one_server_admit_exactly_the_narrower_limit() {
    let _turn = heavy::turn().await;
    let (server, place) = standalone();
    let replicas = Replicas::start(&policy("", 2 * LIMIT), &place);
    exact(&replicas, &["wide", "narrow"], |key| hits(server.count(key))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_on_a_cluster_and_two_that_are_joined_admit_exactly_the_limit() {
    let _turn = heavy::turn().await;
    let (cluster, place) = cluster();
    let count = |key: &str| hits(on_its_node(&cluster, key).count(key));
    let replicas = Replicas::start(&policy("", 2 * LIMIT), &place);
    exact(&replicas, &["narrow"], count).await;
    drop(replicas);
    let replicas = Replicas::start(&policy("hash_tag: [run]\n", 2 * LIMIT), &place);
    let joined = replicas.keys(&RaceRun { run: 0, counters: &["wide", "narrow"] });
    assert_eq!(cluster.slot_of(&joined[0]), cluster.slot_of(&joined[1]));
    exact(&replicas, &["wide", "narrow"], count).await;
}

/// Returns the next run whose two counters are in slots as wanted.
fn next_run(
    replicas: &Replicas,
    cluster: &Cluster,
    run: &mut u64,
    is_wanted: impl Fn(&[u16]) -> bool,
) -> RaceRun {
    loop {
        *run += 1;
        let asked = RaceRun { run: *run, counters: &["wide", "narrow"] };
        let keys = replicas.keys(&asked);
        let slots: Vec<u16> = keys.iter().map(|key| cluster.slot_of(key)).collect();
        if is_wanted(&slots) {
            return asked;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_keys_in_different_slots_never_pass_a_limit_and_lose_nothing() {
    let _turn = heavy::turn().await;
    let (cluster, place) = cluster();
    // Both have the same limit, so that hits held for a moment are in each other's way the most.
    let replicas = Replicas::start(&policy("", LIMIT), &place);
    let mut run = 0;
    for _ in 0..runs() {
        let asked = next_run(&replicas, &cluster, &mut run, |slots| slots[0] != slots[1]);
        let stormed = replicas.storm(&asked).await;
        assert!(stormed <= LIMIT, "run {run}: {stormed} admitted");
        let keys = replicas.keys(&asked);
        let held = |key: &str| hits(on_its_node(&cluster, key).count(key));
        // A caller does not wait for the refund of hits that another node rejected.
        until("what was refunded is in Redis", || keys.iter().all(|key| held(key) == stormed))
            .await;
        let admitted = stormed + replicas.alone(&asked).await;
        replicas.assert_all_from_redis().await;
        assert_eq!(admitted, LIMIT, "run {run}: {stormed} of them in the storm");
        until("all that Redis holds is admitted", || keys.iter().all(|key| held(key) == admitted))
            .await;
        println!("run {run}: {stormed} admitted in the storm, {admitted} in all");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_keys_on_one_node_admit_exactly_the_limit_at_once() {
    let _turn = heavy::turn().await;
    let (cluster, place) = cluster();
    let replicas = Replicas::start(&policy("", LIMIT), &place);
    let mut run = 0;
    let is_on_one_node = |slots: &[u16]| {
        slots[0] != slots[1] && cluster.owner(0, slots[0]) == cluster.owner(0, slots[1])
    };
    for _ in 0..runs() {
        let asked = next_run(&replicas, &cluster, &mut run, is_on_one_node);
        assert_eq!(replicas.storm(&asked).await, LIMIT, "run {run}: no call holds hits of another");
        for key in replicas.keys(&asked) {
            assert_eq!(hits(on_its_node(&cluster, &key).count(&key)), LIMIT, "run {run}: {key}");
        }
    }
    replicas.assert_all_from_redis().await;
}

fn on_its_node<'a>(cluster: &'a Cluster, key: &str) -> &'a Server {
    &cluster.nodes[cluster.owner(0, cluster.slot_of(key))]
}

/// The count in a window's state: its last ten digits.
fn hits(state: u64) -> u64 {
    state % 10_000_000_000
}
