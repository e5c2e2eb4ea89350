//! Calls of one write that share a script call, on a real server and a real cluster: each has an
//! answer of its own, whatever becomes of the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use redis::Value;
use tidegate::clock::Clock;
use tidegate::domain::{
    Answer, Answers, Call, Check, CounterKey, ExecutionStatus, Limit, Op, Verdict,
};
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{RedisConfig, TopologyConfig};
use tidegate::store::redis::client::node_stats::NodeStats;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::script::keys::{Prefix, counter_slot};
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::store::TimeSource;
use tidegate::store::{SharedStore, Store};

use super::cluster::hand_over;
use super::counting_load::config;
use crate::support::acl;
use crate::support::heavy;
use crate::support::limits::{self, HOUR, SECOND, bucket, key, sliding_log, take, window};
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::{PATIENCE, Server};

/// A window that ends after any test.
const LONG: u64 = 1_000_000 * SECOND;
const NOT_EXECUTED: Answer = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
const UNKNOWN: Answer = Answer::Unanswered { executed: ExecutionStatus::Unknown };

/// A store over one connection, whose calls share script calls.
async fn open(server: &Server) -> (RedisStore<RedisClient>, Arc<NodeStats>) {
    let store = open_as(TopologyConfig::Single, server).await;
    let stats = Arc::clone(&store.transport().report()[0].stats);
    (store, stats)
}

/// A store over one connection to each node.
async fn open_as(topology: TopologyConfig, server: &Server) -> RedisStore<RedisClient> {
    let config = RedisConfig {
        connections_per_node: 1,
        silence_max: PATIENCE,
        reply_timeout: PATIENCE,
        ..config(topology, &[server])
    };
    let client = RedisClient::open(config, PRODUCTION.all().to_vec()).unwrap();
    tokio::time::timeout(PATIENCE, client.wait_until_connected()).await.expect("it connects");
    RedisStore::new(client, Prefix::default(), TimeSource::Server)
}

/// Makes the calls at once, so that one write has all of them.
async fn together(store: &RedisStore<RedisClient>, calls: &[Vec<Check<'_>>]) -> Vec<Answers> {
    let calls: Vec<Call<'_>> =
        calls.iter().map(|checks| limits::call(checks, Clock::System.now())).collect();
    join_all(calls.iter().map(|call| store.apply(call))).await
}

fn verdicts(answers: &[Answers]) -> Vec<Option<Verdict>> {
    answers.iter().map(|answers| answers.each[0].verdict()).collect()
}

fn peek<'a>(check: &Check<'a>) -> Vec<Check<'a>> {
    vec![Check { op: Op::PEEK, ..*check }]
}

/// Number of script calls, by the server's own count of commands, without the probe of the connection.
fn script_calls(server: &Server) -> u64 {
    let Value::BulkString(text) = server.ask(&["INFO", "commandstats"]) else { return 0 };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls = line.and_then(|line| line.split(',').next()).expect("a probe of the connection");
    calls.parse::<u64>().unwrap() - 1
}

#[tokio::test]
async fn calls_of_one_write_are_one_script_call_and_see_each_other() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let (store, stats) = open(&server).await;
    let (limit, log) = (window(5, LONG), sliding_log(5, HOUR));
    let calls: Vec<Vec<Check<'_>>> = (0..8).map(|_| vec![take(key(1), &limit, 1)]).collect();
    let answers = together(&store, &calls).await;
    let passed = verdicts(&answers).iter().filter(|one| **one == Some(Verdict::Pass)).count();
    assert_eq!(passed, 5);
    assert_eq!((stats.writes.get(), stats.calls.get(), script_calls(&server)), (1, 8, 1));
    // A call that another script decides is in the same write.
    let mixed = [vec![take(key(2), &limit, 1)], vec![take(key(3), &log, 1)], peek(&calls[0][0])];
    let answers = together(&store, &mixed).await;
    let (pass, refuse) = (Some(Verdict::Pass), Some(Verdict::Refuse));
    assert_eq!(verdicts(&answers), [pass, pass, refuse]);
    assert_eq!((stats.writes.get(), script_calls(&server)), (2, 3));
    // A write of one call has the script of that call.
    together(&store, &mixed[..1]).await;
    assert_eq!((stats.writes.get(), script_calls(&server)), (3, 4));
    assert_eq!(store.stats().disagreements.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_write_has_at_most_64_calls() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let (store, stats) = open(&server).await;
    let limit = window(1_000, LONG);
    let calls: Vec<Vec<Check<'_>>> = (0..150).map(|_| vec![take(key(1), &limit, 1)]).collect();
    let answers = together(&store, &calls).await;
    assert!(verdicts(&answers).iter().all(|verdict| *verdict == Some(Verdict::Pass)));
    assert_eq!((stats.writes.get(), stats.calls.get(), script_calls(&server)), (3, 150, 3));
    let left = together(&store, &[peek(&calls[0][0])]).await;
    assert_eq!(left[0].each[0].outcome().unwrap().available.0, 850);
}

/// 500 callers of each of three stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_callers_of_three_stores_admit_exactly_the_limit() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let (narrow, wide) = (window(600, LONG), bucket(900, 1_000 * HOUR));
    let checks = vec![take(key(1), &wide, 1), take(key(2), &narrow, 1)];
    let stores = join_all((0..3).map(|_| open(&server))).await;
    let calls = vec![checks.clone(); 500];
    let storms = stores.iter().map(|(store, _)| together(store, &calls));
    let answers: Vec<Answers> = join_all(storms).await.into_iter().flatten().collect();
    let is_admitted = |answers: &&Answers| {
        answers.each.iter().all(|answer| answer.verdict() == Some(Verdict::Pass))
    };
    assert_eq!(answers.iter().filter(is_admitted).count(), 600);
    let left = together(&stores[0].0, &[peek(&checks[0]), peek(&checks[1])]).await;
    let left = left.iter().map(|one| one.each[0].outcome().unwrap().available.0);
    assert_eq!(left.collect::<Vec<_>>(), [300, 0], "a rejected call charges nothing");
    for (store, _) in &stores {
        assert_eq!(store.stats().disagreements.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test]
async fn a_script_that_the_server_lost_is_loaded_and_every_call_is_made_once() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let (store, stats) = open(&server).await;
    let limit = window(1_000, LONG);
    let calls: Vec<Vec<Check<'_>>> = (0..20).map(|_| vec![take(key(1), &limit, 1)]).collect();
    server.ask(&["SCRIPT", "FLUSH"]);
    let answers = together(&store, &calls).await;
    assert!(verdicts(&answers).iter().all(|verdict| *verdict == Some(Verdict::Pass)));
    assert_eq!(stats.noscript.get(), 1, "one per script call");
    let left = together(&store, &[peek(&calls[0][0])]).await;
    assert_eq!(left[0].each[0].outcome().unwrap().available.0, 980);
    assert_eq!(stats.noscript.get(), 1, "a single call has the same script");
}

#[tokio::test]
async fn a_full_server_refuses_and_answers_peeks_and_makes_no_charge() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let (store, stats) = open(&server).await;
    let limits: [Arc<Limit>; 2] = [window(5, LONG), bucket(5, HOUR)];
    for limit in &limits {
        let used = take(key(1), limit, 5);
        let fresh = take(key(2), limit, 5);
        together(&store, &[vec![used]]).await;
        server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let answers = together(&store, &[vec![fresh], vec![used], peek(&fresh)]).await;
        server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(answers[0].each, [NOT_EXECUTED]);
        assert_eq!(answers[1].each[0].verdict(), Some(Verdict::Refuse), "it needs no write");
        // It shares a counter with the charge that failed.
        assert!(answers[2].each[0].outcome().is_some());
        let left = together(&store, &[peek(&fresh), peek(&used)]).await;
        let left = left.iter().map(|one| one.each[0].outcome().unwrap().available.0);
        assert_eq!(left.collect::<Vec<_>>(), [5, 0]);
    }
    let errors: u64 = stats.errors().map(|(_, count)| count).sum();
    assert_eq!(errors, 2, "one per script call");
}

#[tokio::test]
async fn a_write_that_fails_amid_a_script_concerns_only_the_calls_that_need_it() {
    // Windows that exist are charged by INCR, and buckets by SET.
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let (store, _) = open(&server).await;
    let (window, bucket) = (window(50, LONG), bucket(50, HOUR));
    let windows = [1, 2, 3].map(|n| take(key(n), &window, 1));
    let buckets = [4, 5].map(|n| take(key(n), &bucket, 1));
    together(&store, &windows.map(|check| vec![check])).await;
    server.ask(&["ACL", "SETUSER", acl::USER, "-set"]);
    let calls = [
        vec![windows[0]],
        vec![windows[1], buckets[0]],
        vec![buckets[1]],
        vec![windows[2], take(key(9), &bucket, 51)],
    ];
    let answers = together(&store, &calls).await;
    assert_eq!(answers[0].each[0].verdict(), Some(Verdict::Pass));
    assert_eq!(answers[1].each, [UNKNOWN; 2], "one of its two charges was made");
    assert_eq!(answers[2].each, [UNKNOWN], "the server does not say that it did nothing");
    assert_eq!(answers[3].each[1].verdict(), Some(Verdict::Refuse), "it charges nothing");
    server.ask(&["ACL", "SETUSER", acl::USER, "+set"]);
    let all: Vec<_> = windows.iter().chain(&buckets).map(peek).collect();
    let left = together(&store, &all).await;
    let left = left.iter().map(|one| one.each[0].outcome().unwrap().available.0);
    assert_eq!(left.collect::<Vec<_>>(), [48, 48, 49, 50, 50]);
    assert_eq!(store.stats().disagreements.load(Ordering::Relaxed), 0);
}

/// A statistic of all nodes together.
fn total(store: &RedisStore<RedisClient>, of: fn(&NodeStats) -> u64) -> u64 {
    store.transport().report().iter().map(|node| of(&node.stats)).sum()
}

/// Keys in different slots of that master.
fn keys_on(cluster: &Cluster, master: usize) -> impl Iterator<Item = CounterKey> {
    let mut slots = Vec::new();
    (0..).map(key).filter(move |key| {
        let slot = counter_slot(key);
        let is_new = cluster.owner(0, slot) == master && !slots.contains(&slot);
        slots.extend(is_new.then_some(slot));
        is_new
    })
}

#[tokio::test]
async fn calls_over_slots_of_a_node_are_one_script_call_for_each_node() {
    let _turn = heavy::turn().await;
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let store = open_as(TopologyConfig::Cluster, &cluster.nodes[0]).await;
    let (window, bucket) = (window(3, LONG), bucket(3, HOUR));
    // Five calls of the same two counters on each master, three of which fit.
    let calls: Vec<Vec<Check<'_>>> = (0..3)
        .flat_map(|master| {
            let keys: Vec<CounterKey> = keys_on(&cluster, master).take(2).collect();
            let checks = vec![take(keys[0], &window, 1), take(keys[1], &bucket, 1)];
            std::iter::repeat_n(checks, 5)
        })
        .collect();
    let answers = together(&store, &calls).await;
    let passed = verdicts(&answers).iter().filter(|one| **one == Some(Verdict::Pass)).count();
    assert_eq!(passed, 9);
    let counts = [total(&store, |node| node.writes.get()), total(&store, |node| node.calls.get())];
    assert_eq!(counts, [3, 15]);
    assert_eq!(cluster.nodes[..3].iter().map(script_calls).sum::<u64>(), 3);
    assert_eq!(store.stats().node_calls.load(Ordering::Relaxed), 15);
}

#[tokio::test]
async fn the_parts_of_a_call_share_script_calls_on_each_node() {
    let _turn = heavy::turn().await;
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let store = open_as(TopologyConfig::Cluster, &cluster.nodes[0]).await;
    let (wide, narrow) = (window(1_000, LONG), bucket(20, 1_000 * HOUR));
    let one_of_each = |nth: usize| {
        let keys = (0..3).map(|master| keys_on(&cluster, master).nth(nth).unwrap());
        keys.map(|key| take(key, &wide, 1)).collect::<Vec<_>>()
    };
    let last = take(keys_on(&cluster, 1).nth(7).unwrap(), &narrow, 1);
    let calls: Vec<Vec<Check<'_>>> =
        (0..60).map(|nth| [one_of_each(nth % 5), vec![last]].concat()).collect();
    let answers = together(&store, &calls).await;
    let is_admitted = |answers: &&Answers| {
        answers.each.iter().all(|answer| answer.verdict() == Some(Verdict::Pass))
    };
    assert_eq!(answers.iter().filter(is_admitted).count(), 20);
    store.wait_until_idle().await;
    let counters = (0..5).flat_map(one_of_each);
    let peeks: Vec<Vec<Check<'_>>> = counters.map(|check| peek(&check)).collect();
    let used = together(&store, &peeks).await.into_iter().map(|one| {
        let available = one.each[0].outcome().unwrap().available;
        1_000 - available.0
    });
    assert_eq!(used.sum::<u64>(), 60, "what rejected calls held is back");
    assert!(total(&store, |node| node.writes.get()) < total(&store, |node| node.calls.get()));
    assert_eq!(store.stats().disagreements.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_slot_that_has_moved_sends_only_its_own_calls_again_slot_by_slot() {
    let _turn = heavy::turn().await;
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let store = open_as(TopologyConfig::Cluster, &cluster.nodes[0]).await;
    let limit = window(1_000, LONG);
    let keys: Vec<CounterKey> = keys_on(&cluster, 1).take(6).collect();
    let pair = |at: usize| vec![take(keys[at], &limit, 1), take(keys[at + 1], &limit, 1)];
    let calls: Vec<Vec<Check<'_>>> = [pair(0), pair(2), pair(4), pair(1)].to_vec();
    // Empty, so that it can be handed over. Two of the calls use it.
    hand_over(&cluster, counter_slot(&keys[1]), 1, 2);
    let answers = together(&store, &calls).await;
    let all_pass = |answers: &Answers| {
        answers.each.iter().all(|answer| answer.verdict() == Some(Verdict::Pass))
    };
    assert!(answers.iter().all(all_pass), "{answers:?}");
    assert_eq!(store.stats().not_here.load(Ordering::Relaxed), 2, "the others were sent again");
    let peeks: Vec<Vec<Check<'_>>> = keys.iter().map(|key| peek(&take(*key, &limit, 1))).collect();
    let left = together(&store, &peeks).await;
    let left = left.iter().map(|one| one.each[0].outcome().unwrap().available.0);
    assert_eq!(left.collect::<Vec<_>>(), [999, 998, 998, 999, 999, 999], "each charged once");
}
