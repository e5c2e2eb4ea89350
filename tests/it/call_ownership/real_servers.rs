//! The same on the service's own connections to a real Redis and a real cluster: callers that leave
//! after up to 3 ms lose no hit, and no counter exceeds its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tidegate::clock::Clock;
use tidegate::domain::{Answer, Call, Check, Limit, Op, Source, Verdict};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{
    Address, MonotonicClock, RedisConfig, TopologyConfig,
};
use tidegate::store::redis::client::node_stats::NodeStats;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::store::TimeSource;

use crate::support::heavy;
use crate::support::limits::{self, *};
use crate::support::proof::times;
use crate::support::random::Random;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::Server;

/// A long window, which ends after any test.
const LONG: u64 = 1_000_000 * SECOND;

async fn open(topology: TopologyConfig, ports: &[u16]) -> RedisStore<RedisClient> {
    let config = RedisConfig {
        topology,
        addresses: ports.iter().map(|port| Address::Tcp("127.0.0.1".into(), *port)).collect(),
        breaker_clock: Some(MonotonicClock::new(|| Clock::System.monotonic_now())),
        // A busy machine must not make a reply late.
        reply_timeout: Duration::from_secs(30),
        silence_max: Duration::from_secs(20),
        ..RedisConfig::default()
    };
    let client = RedisClient::open(config, PRODUCTION.all().to_vec()).unwrap();
    client.wait_until_connected().await;
    RedisStore::new(client, Prefix::default(), TimeSource::Server)
}

fn call<'a>(checks: &'a [Check<'a>]) -> Call<'a> {
    limits::call(checks, Clock::System.now())
}

async fn used(store: &RedisStore<RedisClient>, check: &Check<'_>) -> u64 {
    let peek = [Check { op: Op::PEEK, ..*check }];
    let answers = store.apply(&call(&peek)).await;
    check.limit.capacity().0 - answers.each[0].outcome().expect("it is decided").available.0
}

/// Makes `calls` random calls, a third of which are dropped after up to 3 ms, and compares the
/// counters with what the callers heard.
async fn no_hit_is_lost(store: &RedisStore<RedisClient>, calls: u64) {
    let limits: Vec<Arc<Limit>> = vec![
        window(1_000_000, LONG),
        window(50, LONG),
        bucket(1_000_000, HOUR),
        sliding_window(1_000_000, LONG),
        window(1_000_000, LONG),
        bucket(20, HOUR),
    ];
    let counters: Vec<Check<'_>> =
        (0..).zip(&limits).map(|(n, limit)| take(key(n), limit, 1 + n % 3)).collect();
    let heard: Vec<AtomicU64> = counters.iter().map(|_| AtomicU64::new(0)).collect();
    let one = async |seed: u64| {
        let mut random = Random::seeded(seed);
        let first = random.below(counters.len() as u64) as usize;
        let count = 1 + random.below(4) as usize;
        let which: Vec<usize> = (0..count).map(|n| (first + n) % counters.len()).collect();
        let checks: Vec<Check<'_>> = which.iter().map(|at| counters[*at]).collect();
        let call = call(&checks);
        let applied = store.apply(&call);
        let patience = match random.below(3) {
            0 => Duration::from_micros(random.below(3_000)),
            _ => Duration::from_secs(60),
        };
        let Ok(answers) = tokio::time::timeout(patience, applied).await else { return };
        assert_eq!(answers.source, Source::Redis);
        let passes = |answer: &Answer| answer.verdict() == Some(Verdict::Pass);
        if answers.each.iter().all(passes) {
            for (at, check) in which.iter().zip(&checks) {
                heard[*at].fetch_add(check.cost().0, Ordering::Relaxed);
            }
        }
    };
    stream::iter(1..=calls).for_each_concurrent(64, one).await;
    let heard: Vec<u64> = heard.iter().map(|hits| hits.load(Ordering::Relaxed)).collect();
    // What callers that left have charged is settled once the counters agree with it.
    let mut total = (0, 1);
    for _ in 0..2_000 {
        let mut charged = 0;
        for counter in &counters {
            charged += used(store, counter).await;
        }
        total = (charged, heard.iter().sum::<u64>() + store.stats().unheard.get());
        if total.0 == total.1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(total.0, total.1, "{heard:?}, unheard {}", store.stats().unheard.get());
    println!(
        "{calls} calls, {} hits charged, of which {} unheard",
        total.0,
        store.stats().unheard.get()
    );
    for (counter, heard) in counters.iter().zip(heard) {
        let used = used(store, counter).await;
        assert!(heard <= used && used <= counter.limit.capacity().0, "{heard} {used}");
    }
}

/// The calls of a write shared script calls, which decided as Tidegate does.
fn calls_were_shared(store: &RedisStore<RedisClient>) {
    let sum = |of: fn(&NodeStats) -> u64| -> u64 {
        store.transport().report().iter().map(|node| of(&node.stats)).sum()
    };
    assert_eq!(store.stats().disagreements.load(Ordering::Relaxed), 0);
    let (writes, calls) = (sum(|stats| stats.writes.get()), sum(|stats| stats.calls.get()));
    assert!(writes < calls, "no write had two calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_leave_a_real_redis_lose_no_hit() {
    let _turn = heavy::turn().await;
    let server = Server::start(&[]);
    let store = open(TopologyConfig::Single, &[server.port]).await;
    no_hit_is_lost(&store, times(500, 20_000)).await;
    calls_were_shared(&store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_leave_a_real_cluster_lose_no_hit() {
    let _turn = heavy::turn().await;
    let cluster = Cluster::start(&[]);
    let store = open(TopologyConfig::Cluster, &[cluster.nodes[0].port]).await;
    no_hit_is_lost(&store, times(500, 20_000)).await;
    calls_were_shared(&store);
}

/// Number of calls that the nodes' connections have written.
fn written(store: &RedisStore<RedisClient>) -> u64 {
    store.transport().report().iter().map(|node| node.stats.calls.get()).sum()
}

/// Freezes the servers, drops calls of a wide limit and one that is used up after they are written,
/// and thaws the servers.
async fn rejected_calls_charge_nothing(store: RedisStore<RedisClient>, servers: &[Server]) {
    let (wide, token) = (window(100_000, LONG), bucket(5, HOUR));
    let all = take(key(1), &wide, 1);
    // In slots of every node of a cluster.
    let tokens: Vec<Check<'_>> = (2..14).map(|n| take(key(n), &token, 5)).collect();
    for token in &tokens {
        store.apply(&call(std::slice::from_ref(token))).await;
    }
    let before = written(&store);
    servers.iter().for_each(Server::freeze);
    let pairs: Vec<[Check<'_>; 2]> = tokens.iter().map(|token| [all, *token]).collect();
    let calls: Vec<Call<'_>> = pairs.iter().map(|pair| call(pair)).collect();
    let all_calls = futures_util::future::join_all(calls.iter().map(|call| store.apply(call)));
    let all_written = async {
        // A frozen server gets two writes, so further calls stay in the queue.
        let mut last = before;
        while last == before || last < written(&store) {
            last = written(&store);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // Drops the calls once they are written.
    tokio::select! {
        answers = all_calls => panic!("the servers are frozen: {answers:?}"),
        () = all_written => {}
    }
    servers.iter().for_each(Server::thaw);
    let mut left = used(&store, &all).await;
    for _ in 0..1_000 {
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        left = used(&store, &all).await;
    }
    assert_eq!(left, 0, "hits of rejected calls that stay charged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_calls_of_callers_that_leave_charge_nothing_on_a_cluster() {
    let _turn = heavy::turn().await;
    let cluster = Cluster::start(&["cluster-node-timeout 30000"]);
    let store = open(TopologyConfig::Cluster, &[cluster.nodes[0].port]).await;
    rejected_calls_charge_nothing(store, &cluster.nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_calls_of_callers_that_leave_charge_nothing_on_one_server() {
    let _turn = heavy::turn().await;
    let servers = [Server::start(&[])];
    let store = open(TopologyConfig::Single, &[servers[0].port]).await;
    rejected_calls_charge_nothing(store, &servers).await;
}
