//! Calls of ten limits on all nodes of a cluster while every slot of one node moves: no charge is
//! made twice, and no limit is exceeded, with scripts for nodes and without.

#![allow(clippy::disallowed_methods, reason = "sends calls with a deadline")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Answer, Call, Check, CounterKey, ExecutionStatus, Hits, LateFate, Limit, Op,
};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::TopologyConfig;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::store::TimeSource;
use tokio::task::JoinSet;

use super::counting_load::{config, open, redirects};
use crate::support::acl;
use crate::support::heavy;
use crate::support::limits::{HOUR, bucket, check, key, window};
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::until;

/// Calls that are made at least, half of them over wide limits only.
const CALLS: u64 = 10_000;
const CALLERS: u64 = 16;
const LIMITS_PER_CALL: u64 = 10;
/// Wide limits, of which a call uses ten.
const WIDE: u64 = 60;
/// Hits of a narrow limit, and the calls that use it in turn.
const NARROW_HITS: u64 = 20;
const NARROW_CALLS: u64 = 50;
/// A window that ends in no test.
const CENTURY: u64 = 100 * 365 * 24 * HOUR;

/// What callers know of a wide counter.
#[derive(Debug, Default)]
struct Known {
    charged: AtomicU64,
    unknown: AtomicU64,
}

struct Callers {
    store: RedisStore<RedisClient>,
    wide: [Arc<Limit>; 2],
    narrow: [Arc<Limit>; 2],
    known: Vec<Known>,
    /// Hits charged to each narrow counter by admitted calls.
    admitted: Vec<AtomicU64>,
    calls: AtomicU64,
    stop: AtomicBool,
}

/// A narrow counter's key; the wide ones have the numbers below.
fn narrow_key(number: u64) -> CounterKey {
    key(1_000 + number)
}

impl Callers {
    fn new(connections: RedisClient, node_scripts: bool) -> Callers {
        let limits = |hits| [window(hits, CENTURY), bucket(hits, HOUR)];
        Callers {
            store: RedisStore::new(connections, Prefix::default(), TimeSource::Server)
                .with_node_scripts(node_scripts),
            wide: limits(100_000),
            narrow: limits(NARROW_HITS),
            known: (0..WIDE).map(|_| Known::default()).collect(),
            admitted: (0..100_000).map(|_| AtomicU64::new(0)).collect(),
            calls: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    async fn apply(&self, checks: &[Check<'_>]) -> Vec<Answer> {
        let deadline = Some(Instant::now() + Duration::from_secs(2));
        let (now, accounting) = (Clock::System.now(), Accounting::AllOrNothing);
        let answers = self.store.apply(&Call { checks, accounting, now, deadline }).await;
        if let Some(late) = answers.late {
            // What was charged beside an unanswered part stands, as if the call was then admitted.
            late.settle(LateFate::Keep);
        }
        answers.each
    }

    /// A call over ten wide limits, each of which counts every charge and nothing else.
    async fn wide_call(&self, call: u64) {
        let numbers: Vec<u64> = (0..LIMITS_PER_CALL).map(|n| (call * 7 + n * 6) % WIDE).collect();
        let take = Op::Take { cost: Hits(1) };
        let check = |n: &u64| check(key(*n), &self.wide[*n as usize % 2], take);
        let checks: Vec<Check<'_>> = numbers.iter().map(check).collect();
        for (number, answer) in numbers.iter().zip(self.apply(&checks).await) {
            let known = &self.known[*number as usize];
            match answer {
                Answer::Decided(outcome) => known.charged.fetch_add(outcome.charged.0, SeqCst),
                Answer::Unanswered { executed: ExecutionStatus::Unknown } => {
                    known.unknown.fetch_add(1, SeqCst)
                }
                Answer::Unanswered { executed: ExecutionStatus::NotExecuted } => 0,
                other => panic!("nothing refuses: {other:?}"),
            };
        }
    }

    /// A call over a narrow limit, which rejects most, and wide ones that no other call uses.
    async fn narrow_call(&self, call: u64) {
        let narrow = call / NARROW_CALLS;
        let take = Op::Take { cost: Hits(1) };
        let others = (1..LIMITS_PER_CALL)
            .map(|n| check(key(500 + (call + n * 6) % WIDE), &self.wide[0], take));
        let last = check(narrow_key(narrow), &self.narrow[narrow as usize % 2], take);
        let checks: Vec<Check<'_>> = others.chain([last]).collect();
        let answers = self.apply(&checks).await;
        if let Some(Answer::Decided(outcome)) = answers.last() {
            self.admitted[narrow as usize].fetch_add(outcome.charged.0, SeqCst);
        }
    }

    async fn run(&self) {
        while !self.stop.load(SeqCst) {
            let call = self.calls.fetch_add(1, SeqCst);
            match call % 2 {
                0 => self.wide_call(call / 2).await,
                _ => self.narrow_call(call / 2).await,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Hits in a wide counter.
    async fn held(&self, number: u64) -> u64 {
        let limit = &self.wide[number as usize % 2];
        loop {
            let answers = self.apply(&[check(key(number), limit, Op::PEEK)]).await;
            if let Answer::Decided(outcome) = answers[0] {
                return 100_000 - outcome.available.0;
            }
        }
    }
}

async fn a_full_reshard_under_load(node_scripts: bool) {
    let _turn = heavy::turn().await;
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let connections = open(config(TopologyConfig::Cluster, &[&cluster.nodes[1]])).await;
    let callers = Arc::new(Callers::new(connections, node_scripts));
    let mut tasks = JoinSet::new();
    for _ in 0..CALLERS {
        let callers = Arc::clone(&callers);
        tasks.spawn(async move { callers.run().await });
    }
    until("calls are made", || callers.calls.load(SeqCst) > 200).await;
    let before = callers.calls.load(SeqCst);
    let nodes = callers.store.transport().report();
    cluster.reshard(1, 2).await;
    let during = callers.calls.load(SeqCst) - before;
    until("the calls are made", || callers.calls.load(SeqCst) >= CALLS).await;
    callers.stop.store(true, SeqCst);
    tasks.join_all().await;

    let stats = callers.store.stats();
    let [node_calls, not_here] = [&stats.node_calls, &stats.not_here].map(|of| of.load(SeqCst));
    let redirected = redirects(&nodes);
    let unknown: u64 = callers.known.iter().map(|known| known.unknown.load(SeqCst)).sum();
    println!(
        "{} calls, {during} of them during the reshard, {node_calls} scripts for nodes, {not_here} \
         not here, {redirected} redirects, {unknown} unknown",
        callers.calls.load(SeqCst)
    );
    assert!(redirected + not_here > 0, "no slot moved under a call");
    assert_eq!(node_calls > 0, node_scripts);
    assert_eq!(not_here > 0, node_scripts, "a moving slot was not met");
    for (number, known) in (0..).zip(&callers.known) {
        let (charged, unknown) = (known.charged.load(SeqCst), known.unknown.load(SeqCst));
        let held = callers.held(number).await;
        assert!(charged > 0, "{number} was never charged");
        let expected = charged..=charged + unknown;
        assert!(expected.contains(&held), "{number}: {held} hits of {charged} + {unknown}");
    }
    let exhausted = callers.admitted.iter().filter(|hits| hits.load(SeqCst) == NARROW_HITS).count();
    assert!(exhausted > 10, "{exhausted} narrow limits were reached");
    for (number, hits) in callers.admitted.iter().enumerate() {
        assert!(hits.load(SeqCst) <= NARROW_HITS, "{number}: {hits:?} hits were admitted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_reshard_repeats_no_charge_and_exceeds_no_limit() {
    a_full_reshard_under_load(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_node_scripts_a_full_reshard_repeats_no_charge_and_exceeds_no_limit() {
    a_full_reshard_under_load(false).await;
}
