//! Callers that keep algorithm, and the book that they keep.
//!
//! They use the whole store with limits that nobody reaches, so that a counter holds the number of
//! its charges; and the book says how many there may be: at least the acknowledged ones, at most
//! those and the ones whose outcome nobody knows. Beside them two scripts of our own, for single
//! items.

#![allow(clippy::disallowed_methods, reason = "waits with a deadline, and times its load")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use redis::Value;
use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Algorithm, Answer, Call, Charge, Check, Executed, FixedWindow, Hits, Key, Limit,
    Micros, OnStoreFailure, Op, Rate, Role, Unit, Window,
};
use tidegate::resilience::deadline::Deadline;
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{
    Address, Auth, Password, RedisConfig, TopologyConfig,
};
use tidegate::store::redis::client::node_stats::{Counter, NodeStats};
use tidegate::store::redis::client::topology::Connections;
use tidegate::store::redis::client::transport::{ScriptCall, ScriptCalls, SendError, Transport};
use tidegate::store::redis::keys::Prefix;
use tidegate::store::redis::script::library::{PRODUCTION, Script};
use tidegate::store::redis::store::Timing;
use tokio::task::JoinSet;

use crate::support::acl;
use crate::support::redis_server::{PATIENCE, Server, until};

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
    ScriptCall { script, command, slot: None }
}

/// The test's login, as the service would be configured with it.
pub fn config(topology: TopologyConfig, servers: &[&Server]) -> RedisConfig {
    let address = |server: &&Server| Address::Tcp("127.0.0.1".into(), server.port);
    RedisConfig {
        topology,
        addresses: servers.iter().map(address).collect(),
        auth: auth(),
        meta: "secret 1, format 1".into(),
        ..RedisConfig::default()
    }
}

pub fn auth() -> Auth {
    Auth { user: Some(acl::USER.into()), password: Password::Fixed(acl::PASSWORD.into()) }
}

/// Opens connections and waits for them.
pub async fn open(config: RedisConfig) -> Connections {
    // What the connections say is shown where a test fails.
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let mut scripts: Vec<&'static Script> = PRODUCTION.each().to_vec();
    scripts.extend([&*COUNT, &*FAIL]);
    let connections = Connections::open(config, scripts).unwrap();
    let connected = tokio::time::timeout(PATIENCE, connections.until_connected()).await;
    connected.expect("the connections are made");
    connections
}

/// Sends one counting item.
pub async fn count_one(connections: &Connections, key: &str) -> Result<Value, SendError> {
    let mut replies = connections.send(ScriptCalls::from_buf([item(&COUNT, key)])).await;
    assert_eq!(replies.len(), 1);
    replies.remove(0)
}

/// A counter's value, summed over the nodes.
pub fn total(connections: &Connections, of: impl Fn(&NodeStats) -> &Counter) -> u64 {
    connections.report().iter().map(|node| of(&node.counters).get()).sum()
}

/// What a caller waits at most; well past a round trip on a busy machine, so that only a fault
/// makes an outcome unknown.
const BUDGET: Duration = Duration::from_millis(400);
/// Between a caller's calls: the load is to be steady, not heavy.
const PAUSE: Duration = Duration::from_millis(2);
/// Callers per load.
const CALLERS: usize = 8;
/// More than any test charges.
const CAPACITY: u64 = 1_000_000_000;
/// A window that no test sees the end of, but for one second in May 2033.
const DECADES: u64 = 1_000_000_000;

/// The whole store, as the service stacks it.
pub type Counted = Deadline<RedisStore<Connections>>;

/// One counter, and what its callers know of it.
#[derive(Debug, Default)]
pub struct Page {
    pub identity: u128,
    /// Which node held it when the test began.
    pub home: usize,
    acknowledged: AtomicU64,
    /// How long its calls took, in microseconds, since the last look.
    took: Mutex<Vec<u64>>,
    unknown: AtomicU64,
    refused: AtomicU64,
}

impl Page {
    pub fn new(identity: u128, home: usize) -> Page {
        Page { identity, home, ..Page::default() }
    }

    pub fn key(&self) -> Key {
        Key { identity: self.identity, tag: None }
    }

    pub fn unanswered(&self) -> u64 {
        self.unknown.load(Ordering::SeqCst) + self.refused.load(Ordering::SeqCst)
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }
}

/// Pages for counters on a server that has no slots.
pub fn pages(count: u128) -> Vec<Page> {
    (0..count).map(|identity| Page::new(identity, 0)).collect()
}

/// Callers under way.
pub struct Load {
    pub book: Arc<Vec<Page>>,
    store: Arc<Counted>,
    limit: Arc<Limit>,
    stop: Arc<AtomicBool>,
    callers: JoinSet<()>,
}

impl Load {
    /// Callers that go through the book until they are stopped, two checks a call. Checks of one
    /// call lie on the same node; on a cluster in two slots.
    pub fn start(connections: Connections, book: Vec<Page>) -> Load {
        let (store, limit) = counted(connections, BUDGET);
        let store = Arc::new(store);
        let (book, stop) = (Arc::new(book), Arc::new(AtomicBool::new(false)));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (store, limit) = (Arc::clone(&store), Arc::clone(&limit));
            let (book, stop) = (Arc::clone(&book), Arc::clone(&stop));
            callers.spawn(async move {
                let mut at = caller;
                while !stop.load(Ordering::SeqCst) {
                    let page = &book[at % book.len()];
                    let mut others = book.iter().cycle().skip(at % book.len() + 1);
                    let other = others.find(|other| other.home == page.home).unwrap();
                    at += CALLERS - 1;
                    call(&store, &limit, &[page, other]).await;
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Load { book, store, limit, stop, callers }
    }

    pub fn connections(&self) -> &Connections {
        self.store.store().transport()
    }

    /// Waits until every counter that is meant was charged so many times more.
    pub async fn progress(&self, what: &str, pages: impl Fn(&Page) -> bool, more: u64) {
        let chosen: Vec<_> = self.book.iter().filter(|page| pages(page)).collect();
        assert!(!chosen.is_empty(), "no counter is meant by: {what}");
        let before: Vec<u64> = chosen.iter().map(|page| page.acknowledged()).collect();
        until(what, || {
            chosen.iter().zip(&before).all(|(page, before)| page.acknowledged() >= before + more)
        })
        .await;
    }

    /// Prints how long calls took since the last look, on the shards that are meant: a record, and
    /// no judgement.
    pub fn record(&self, when: &str, pages: impl Fn(&Page) -> bool) {
        let mut all: Vec<u64> = Vec::new();
        for page in self.book.iter() {
            let took = std::mem::take(&mut *page.took.lock().unwrap());
            if pages(page) {
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

    /// Lets every caller finish its call, and compares the book with the counters: no charge was
    /// counted twice and, where `lossless`, no acknowledged one was lost.
    pub async fn stop(mut self, lossless: bool) -> Arc<Vec<Page>> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(done) = self.callers.join_next().await {
            done.unwrap();
        }
        for page in self.book.iter() {
            let held = self.held(page).await;
            let (sure, unknown) = (page.acknowledged(), page.unknown.load(Ordering::SeqCst));
            assert!(held <= sure + unknown, "{page:?}: {held} charges of {sure} + {unknown}");
            assert!(!lossless || held >= sure, "{page:?}: {held} charges of at least {sure}");
        }
        self.book
    }

    /// The hits that a counter holds.
    async fn held(&self, page: &Page) -> u64 {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some(held) = hits(&self.store, &self.limit, page).await {
                return held;
            }
            assert!(std::time::Instant::now() < end, "{page:?} is not answered");
        }
    }
}

/// The store as the service stacks it, with a limit that nobody reaches.
pub fn counted(connections: Connections, budget: Duration) -> (Counted, Arc<Limit>) {
    let redis = RedisStore::new(connections, Prefix::default(), Timing::Server);
    let window = Window::Epoch { length: Micros::from_secs(DECADES) };
    let limit = Arc::new(Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits(CAPACITY), window }),
        rate: Rate { requests_per_unit: 1, unit: Some(Unit::Year), unit_multiplier: 1 },
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Error,
        limit_id: 0,
    });
    (Deadline::new(redis, budget, Clock::default()), limit)
}

async fn call(store: &Counted, limit: &Arc<Limit>, pages: &[&Page]) {
    let began = std::time::Instant::now();
    let answers = apply(store, limit, pages, Op::Take { cost: Hits(1) }).await;
    let took = began.elapsed().as_micros() as u64;
    pages[0].took.lock().unwrap().push(took);
    for (page, answer) in pages.iter().zip(answers) {
        let column = match answer {
            // Whatever another slot's silence means: nothing refuses, so it was charged.
            Answer::Decided(outcome) => {
                assert_eq!(outcome.charged, Hits(1), "{page:?}");
                &page.acknowledged
            }
            Answer::Unanswered { executed: Executed::No } => &page.refused,
            Answer::Unanswered { executed: Executed::Unknown } => &page.unknown,
            Answer::NotAsked => panic!("nothing refuses"),
        };
        column.fetch_add(1, Ordering::SeqCst);
    }
}

/// One call over the counters of these pages.
pub async fn apply(store: &Counted, limit: &Arc<Limit>, pages: &[&Page], op: Op) -> Vec<Answer> {
    let check =
        |page: &&Page| Check { key: page.key(), limit, op, role: Role::Required, holder: None };
    let checks: Vec<Check<'_>> = pages.iter().map(check).collect();
    let (accounting, now) = (Accounting::AllOrNothing, Micros::ZERO);
    store.apply(&Call { checks: &checks, accounting, now, deadline: None }).await.each
}

/// The hits that a counter holds, if it is answered.
pub async fn hits(store: &Counted, limit: &Arc<Limit>, page: &Page) -> Option<u64> {
    let answer = apply(store, limit, &[page], Op::Peek).await;
    answer[0].outcome().map(|outcome| CAPACITY - outcome.available.0)
}
