//! Callers that count continuously, and a record of what they were told.
//!
//! They call the whole store under limits that nobody reaches, so a counter holds the number of its
//! charges. The record bounds that number: at least the acknowledged calls, at most those and the
//! calls with an unknown outcome. Two scripts of the test's own count by single commands.

#![allow(clippy::disallowed_methods, reason = "waits with a deadline, and times its load")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use redis::Value;
use tidegate::clock::Clock;
use tidegate::domain::{
    Answer, Check, CounterKey, ExecutionStatus, Hits, Limit, Micros, OnStoreFailure, Op,
};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{Address, RedisConfig, TopologyConfig};
use tidegate::store::redis::client::node_stats::{Counter, NodeReport, NodeStats};
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::{PRODUCTION, Script, ScriptCall};
use tidegate::store::redis::store::TimeSource;
use tokio::task::JoinSet;

use crate::support::limits::{self, SECOND, check, on_failure, window};
use crate::support::real_store::login;
use crate::support::redis_server::{PATIENCE, Server, until};
use crate::support::requests::send;

/// Adds one under its key, and expires it in an hour.
pub static COUNT: LazyLock<Script> = LazyLock::new(|| {
    script(
        "local count = (tonumber(redis.call('GET', KEYS[1])) or 0) + 1\n\
         redis.call('SET', KEYS[1], count, 'EX', 3600)\n\
         return count",
    )
});
/// Fails.
pub static FAIL: LazyLock<Script> = LazyLock::new(|| script("return redis.call('GET')"));

fn script(text: &str) -> Script {
    let sha = redis::Script::new(text).get_hash().to_owned();
    Script { name: "of the tests", text: text.to_owned(), sha }
}

/// One run of a script for one key.
pub fn item(script: &'static Script, key: &str) -> ScriptCall {
    let mut command = redis::cmd("EVALSHA");
    command.arg(&script.sha).arg(1).arg(key);
    ScriptCall { script, command, slot: None, deadline: None }
}

/// The test's login, as the service would be configured with it.
pub fn config(topology: TopologyConfig, servers: &[&Server]) -> RedisConfig {
    let address = |server: &&Server| Address::Tcp("127.0.0.1".into(), server.port);
    RedisConfig {
        topology,
        addresses: servers.iter().map(address).collect(),
        auth: login(),
        meta: "secret 1, format 1".into(),
        // As in the service: twice a call's time. A node that writes its slots to a slow disk may
        // pause longer than the default.
        reply_timeout: BUDGET * 2,
        ..RedisConfig::default()
    }
}

/// Opens connections and waits for them.
pub async fn open(config: RedisConfig) -> RedisClient {
    // What the connections say is shown where a test fails.
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let mut scripts: Vec<&'static Script> = PRODUCTION.all().to_vec();
    scripts.extend([&*COUNT, &*FAIL]);
    let connections = RedisClient::open(config, scripts).unwrap();
    let connected = tokio::time::timeout(PATIENCE, connections.wait_until_connected()).await;
    connected.expect("the connections are made");
    connections
}

/// Sends one counting script call.
pub async fn count_one(connections: &RedisClient, key: &str) -> Result<Value, SendError> {
    let mut replies = send(connections, [item(&COUNT, key)]).await;
    assert_eq!(replies.len(), 1);
    replies.remove(0)
}

/// A counter's value, summed over the nodes.
pub fn total(connections: &RedisClient, of: impl Fn(&NodeStats) -> &Counter) -> u64 {
    connections.report().iter().map(|node| of(&node.stats).get()).sum()
}

/// Number of redirects by nodes that were reported earlier. A master that gives away its last slot
/// becomes a replica, and is not reported any more.
pub fn redirects(nodes: &[NodeReport]) -> u64 {
    nodes.iter().map(|node| node.stats.moved.get() + node.stats.ask.get()).sum()
}

/// A caller's time limit: far above a round trip on a busy machine, so only a fault makes an outcome
/// unknown.
const BUDGET: Duration = Duration::from_secs(1);
/// Between the calls of a caller: a steady load, not a heavy one.
const PAUSE: Duration = Duration::from_millis(2);
/// Callers per load.
const CALLERS: usize = 8;
/// More than any test charges.
const CAPACITY: u64 = 1_000_000_000;
/// A window that ends in no test, except for one second in May 2033.
const DECADES: u64 = 1_000_000_000;

/// The store with the layers of the service.
pub type BudgetedStore = Arc<Stack<RedisStore<RedisClient>, MemoryStore>>;

/// One counter, and what its callers know of it.
#[derive(Debug, Default)]
pub struct CounterRecord {
    pub identity: u128,
    /// Which node held it when the test began.
    pub home: usize,
    acknowledged: AtomicU64,
    /// Durations of its calls since the last [`Load::record`], in microseconds.
    took: Mutex<Vec<u64>>,
    unknown: AtomicU64,
    refused: AtomicU64,
}

impl CounterRecord {
    pub fn new(identity: u128, home: usize) -> CounterRecord {
        CounterRecord { identity, home, ..CounterRecord::default() }
    }

    pub fn key(&self) -> CounterKey {
        CounterKey { identity: self.identity, tag: None }
    }

    pub fn unanswered(&self) -> u64 {
        self.unknown.load(Ordering::SeqCst) + self.refused.load(Ordering::SeqCst)
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }
}

/// Records of counters on a server without slots.
pub fn records(count: u128) -> Vec<CounterRecord> {
    (0..count).map(|identity| CounterRecord::new(identity, 0)).collect()
}

/// Running callers.
pub struct Load {
    pub book: Arc<Vec<CounterRecord>>,
    store: BudgetedStore,
    limit: Arc<Limit>,
    stop: Arc<AtomicBool>,
    callers: JoinSet<()>,
}

impl Load {
    /// Starts callers that charge all counters in turn, two per call, until they are stopped. The two
    /// counters of a call are on the same node; on a cluster in two slots.
    pub fn start(connections: RedisClient, book: Vec<CounterRecord>) -> Load {
        Load::start_on(counted(connections, BUDGET), book)
    }

    /// The same, with a script call for each slot.
    pub fn start_without_node_scripts(connections: RedisClient, book: Vec<CounterRecord>) -> Load {
        Load::start_on(counted_with(connections, BUDGET, false), book)
    }

    fn start_on((store, limit): (BudgetedStore, Arc<Limit>), book: Vec<CounterRecord>) -> Load {
        let (book, stop) = (Arc::new(book), Arc::new(AtomicBool::new(false)));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (store, limit) = (Arc::clone(&store), Arc::clone(&limit));
            let (book, stop) = (Arc::clone(&book), Arc::clone(&stop));
            callers.spawn(async move {
                let mut at = caller;
                while !stop.load(Ordering::SeqCst) {
                    let record = &book[at % book.len()];
                    let mut others = book.iter().cycle().skip(at % book.len() + 1);
                    let other = others.find(|other| other.home == record.home).unwrap();
                    at += CALLERS - 1;
                    call(&store, &limit, &[record, other]).await;
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Load { book, store, limit, stop, callers }
    }

    pub fn connections(&self) -> &RedisClient {
        self.store.remote().transport()
    }

    /// Waits until every selected counter was charged `more` times.
    pub async fn progress(&self, what: &str, records: impl Fn(&CounterRecord) -> bool, more: u64) {
        let chosen: Vec<_> = self.book.iter().filter(|record| records(record)).collect();
        assert!(!chosen.is_empty(), "no counter is meant by: {what}");
        let before: Vec<u64> = chosen.iter().map(|record| record.acknowledged()).collect();
        until(what, || {
            chosen
                .iter()
                .zip(&before)
                .all(|(record, before)| record.acknowledged() >= before + more)
        })
        .await;
    }

    /// Prints the durations of calls to the selected counters since the last time. It asserts nothing.
    pub fn record(&self, when: &str, records: impl Fn(&CounterRecord) -> bool) {
        let mut all: Vec<u64> = Vec::new();
        for record in self.book.iter() {
            let took = std::mem::take(&mut *record.took.lock().unwrap());
            if records(record) {
                all.extend(took);
            }
        }
        all.sort_unstable();
        let at = |share: f64| all.get((all.len() as f64 * share) as usize).copied().unwrap_or(0);
        let most = all.last().copied().unwrap_or(0);
        println!(
            "healthy shards, {when}: {} calls, p50 {} us, p99 {} us, longest {most} us",
            all.len(),
            at(0.5),
            at(0.99)
        );
    }

    /// Lets every caller finish its call and compares the records with the counters: no charge was
    /// counted twice and, if `lossless`, no acknowledged one was lost.
    pub async fn stop(mut self, lossless: bool) -> Arc<Vec<CounterRecord>> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(done) = self.callers.join_next().await {
            done.unwrap();
        }
        for record in self.book.iter() {
            let held = self.held(record).await;
            let (sure, unknown) = (record.acknowledged(), record.unknown.load(Ordering::SeqCst));
            assert!(held <= sure + unknown, "{record:?}: {held} charges of {sure} + {unknown}");
            assert!(!lossless || held >= sure, "{record:?}: {held} charges of at least {sure}");
        }
        self.book
    }

    /// The hits in a counter.
    async fn held(&self, record: &CounterRecord) -> u64 {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some(held) = hits(&self.store, &self.limit, record).await {
                return held;
            }
            assert!(std::time::Instant::now() < end, "{record:?} is not answered");
        }
    }
}

/// The store with the layers of the service, and a limit that nobody reaches.
pub fn counted(connections: RedisClient, budget: Duration) -> (BudgetedStore, Arc<Limit>) {
    counted_with(connections, budget, true)
}

/// The same, with or without scripts for the nodes of a cluster.
pub fn counted_with(
    connections: RedisClient,
    budget: Duration,
    node_scripts: bool,
) -> (BudgetedStore, Arc<Limit>) {
    let redis = RedisStore::new(connections, Prefix::default(), TimeSource::Server)
        .with_node_scripts(node_scripts);
    let limit = window(CAPACITY, DECADES * SECOND);
    let limit = on_failure(&limit, OnStoreFailure::Error);
    let config = StackConfig { budget, replicas: 1, refusal_cache: false };
    (Stack::new(redis, MemoryStore::new(1), config, Clock::System), limit)
}

async fn call(store: &BudgetedStore, limit: &Arc<Limit>, records: &[&CounterRecord]) {
    let began = std::time::Instant::now();
    let answers = apply(store, limit, records, Op::Take { cost: Hits(1) }).await;
    let took = began.elapsed().as_micros() as u64;
    records[0].took.lock().unwrap().push(took);
    for (record, answer) in records.iter().zip(answers) {
        let column = match answer {
            // Whatever another slot's silence means: nothing refuses, so it was charged.
            Answer::Decided(outcome) => {
                assert_eq!(outcome.charged, Hits(1), "{record:?}");
                &record.acknowledged
            }
            Answer::Unanswered { executed: ExecutionStatus::NotExecuted } => &record.refused,
            Answer::Unanswered { executed: ExecutionStatus::Unknown } => &record.unknown,
            Answer::NotAsked | Answer::LastKnown { .. } => panic!("nothing refuses"),
        };
        column.fetch_add(1, Ordering::SeqCst);
    }
}

/// One call over the counters of these records.
pub async fn apply(
    store: &BudgetedStore,
    limit: &Arc<Limit>,
    records: &[&CounterRecord],
    op: Op,
) -> Vec<Answer> {
    let checks: Vec<Check<'_>> =
        records.iter().map(|record| check(record.key(), limit, op)).collect();
    store.ask(&limits::call(&checks, Micros::ZERO)).await.each
}

/// The hits in a counter, if there is an answer.
pub async fn hits(
    store: &BudgetedStore,
    limit: &Arc<Limit>,
    record: &CounterRecord,
) -> Option<u64> {
    let answer = apply(store, limit, &[record], Op::PEEK).await;
    answer[0].outcome().map(|outcome| CAPACITY - outcome.available.0)
}
