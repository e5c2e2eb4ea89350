//! A counting script, callers that keep using it, and the book that they keep.
//!
//! The script is the smallest consuming one: every run adds one. So a key holds the number of its
//! charges, and the book says how many there may be: at least the acknowledged ones, at most those
//! and the ones whose outcome nobody knows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use redis::Value;
use tidegate::domain::Executed;
use tidegate::store::redis::config::{Address, Auth, Password, RedisConfig, Topology};
use tidegate::store::redis::connections::Connections;
use tidegate::store::redis::counters::{Counter, NodeCounters};
use tidegate::store::redis::script::Script;
use tidegate::store::redis::transport::{Item, Items, SendError, Transport};
use tokio::task::JoinSet;

use crate::support::acl;
use crate::support::process::{PATIENCE, Server, until};

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
    Script { text: text.to_owned(), sha: redis::Script::new(text).get_hash().to_owned() }
}

/// One run of a script for one key.
pub fn item(script: &'static Script, key: &str, slot: Option<u16>) -> Item {
    let mut command = redis::cmd("EVALSHA");
    command.arg(&script.sha).arg(1).arg(key);
    Item { script, command, slot }
}

/// The test's login, as the service would be configured with it.
pub fn config(topology: Topology, servers: &[&Server]) -> RedisConfig {
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
pub async fn open(config: RedisConfig) -> Arc<Connections> {
    // What the connections say is shown where a test fails.
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let connections = Connections::open(config, vec![&COUNT, &FAIL]).unwrap();
    let connected = tokio::time::timeout(PATIENCE, connections.until_connected()).await;
    connected.expect("the connections are made");
    Arc::new(connections)
}

/// Sends one counting item.
pub async fn count_one(
    connections: &Connections,
    key: &str,
    slot: Option<u16>,
) -> Result<Value, SendError> {
    let mut replies = connections.send(Items::from_buf([item(&COUNT, key, slot)])).await;
    assert_eq!(replies.len(), 1);
    replies.remove(0)
}

/// A counter's value, summed over the nodes.
pub fn total(connections: &Connections, of: impl Fn(&NodeCounters) -> &Counter) -> u64 {
    connections.report().iter().map(|node| of(&node.counters).get()).sum()
}

/// One key, and what its callers know of it.
#[derive(Debug, Default)]
pub struct Page {
    pub key: String,
    pub slot: Option<u16>,
    /// Which node held it when the test began.
    pub home: usize,
    pub acknowledged: AtomicU64,
    pub unknown: AtomicU64,
    pub refused: AtomicU64,
}

impl Page {
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    pub fn unanswered(&self) -> u64 {
        self.unknown.load(Ordering::SeqCst) + self.refused.load(Ordering::SeqCst)
    }
}

/// Callers under way.
pub struct Load {
    pub book: Arc<Vec<Page>>,
    stop: Arc<AtomicBool>,
    callers: JoinSet<()>,
    pub faults: Arc<Mutex<Vec<SendError>>>,
}

/// What a caller waits at most; well past a round trip on a busy machine, so that only a fault
/// makes an outcome unknown.
const BUDGET: Duration = Duration::from_millis(400);
/// Between a caller's calls: the load is to be steady, not heavy.
const PAUSE: Duration = Duration::from_millis(2);
/// Callers per load.
const CALLERS: usize = 8;

impl Load {
    /// Callers that go through the book's keys until they are stopped, two items a call.
    pub fn start(connections: &Arc<Connections>, book: Vec<Page>) -> Load {
        let (book, stop) = (Arc::new(book), Arc::new(AtomicBool::new(false)));
        let faults = Arc::new(Mutex::new(Vec::new()));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (connections, book) = (Arc::clone(connections), Arc::clone(&book));
            let (stop, faults) = (Arc::clone(&stop), Arc::clone(&faults));
            callers.spawn(async move {
                let mut at = caller;
                while !stop.load(Ordering::SeqCst) {
                    let page = &book[at % book.len()];
                    at += CALLERS - 1;
                    call(&connections, page, &faults).await;
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Load { book, stop, callers, faults }
    }

    /// Waits until every key was charged so many times more.
    pub async fn progress(&self, what: &str, pages: impl Fn(&Page) -> bool, more: u64) {
        let chosen: Vec<_> = self.book.iter().filter(|page| pages(page)).collect();
        assert!(!chosen.is_empty(), "no key is meant by: {what}");
        let before: Vec<u64> = chosen.iter().map(|page| page.acknowledged()).collect();
        until(what, || {
            chosen.iter().zip(&before).all(|(page, before)| page.acknowledged() >= before + more)
        })
        .await;
    }

    /// Lets every caller finish its call.
    pub async fn stop(mut self) -> Arc<Vec<Page>> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(done) = self.callers.join_next().await {
            done.unwrap();
        }
        self.book
    }
}

async fn call(connections: &Connections, page: &Page, faults: &Mutex<Vec<SendError>>) {
    let one = || item(&COUNT, &page.key, page.slot);
    let items = Items::from_iter([one(), one()]);
    match tokio::time::timeout(BUDGET, connections.send(items)).await {
        Ok(replies) => {
            for reply in replies {
                let column = match reply {
                    Ok(Value::Int(_)) => &page.acknowledged,
                    Ok(other) => panic!("{}: {other:?}", page.key),
                    Err(error) => {
                        faults.lock().unwrap().push(error);
                        match error.executed {
                            Executed::No => &page.refused,
                            Executed::Unknown => &page.unknown,
                        }
                    }
                };
                column.fetch_add(1, Ordering::SeqCst);
            }
        }
        Err(_) => {
            page.unknown.fetch_add(2, Ordering::SeqCst);
        }
    }
}

/// No charge was counted twice. `lossless`: nor was an acknowledged one lost.
pub fn balance(book: &[Page], lossless: bool, count: impl Fn(&str) -> u64) {
    for page in book {
        let held = count(&page.key);
        let (sure, unknown) = (page.acknowledged(), page.unknown.load(Ordering::SeqCst));
        assert!(held <= sure + unknown, "{}: {held} charges of {sure} + {unknown}", page.key);
        if lossless {
            assert!(held >= sure, "{}: {held} charges of at least {sure}", page.key);
        }
    }
}

/// Pages for keys on a server that has no slots.
pub fn pages(count: usize) -> Vec<Page> {
    let page = |at| Page { key: format!("tg1z:{{{at}}}"), ..Page::default() };
    (0..count).map(page).collect()
}
