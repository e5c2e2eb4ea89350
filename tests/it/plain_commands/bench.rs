//! A store on a real server whose hints are wrong as often as a test likes.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tidegate::clock::Clock;
use tidegate::domain::{Accounting, Answer, Answers, Call, Check, Outcome};
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{
    Address, MonotonicClock, RedisConfig, TopologyConfig,
};
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::store::TimeSource;
use tidegate::store::{SharedStore, SharedStoreStats, Store};

use crate::support::acl;
use crate::support::limits::{HOUR, bucket, key, take};
use crate::support::redis_server::{PATIENCE, Server};

/// The length of the shortest windows that are charged plainly.
pub const LENGTH: u64 = 2_000_000;
/// A counter that only the scripts can charge: it tells the connections the server's time.
const CLOCK_COUNTER: u64 = 1 << 40;

/// The service's configuration, with the least-privilege ACL, and without timeouts: a server that a
/// test freezes answers later.
pub fn config(topology: TopologyConfig, ports: &[u16]) -> RedisConfig {
    let address = |port: &u16| Address::Tcp("127.0.0.1".into(), *port);
    RedisConfig {
        topology,
        addresses: ports.iter().map(address).collect(),
        auth: acl::auth(),
        connections_per_node: 1,
        reply_timeout: PATIENCE,
        silence_max: PATIENCE,
        breaker_clock: Some(MonotonicClock::new(|| Clock::System.monotonic_now())),
        ..RedisConfig::default()
    }
}

/// A store over connections that are open. One in `wrong_hints` calls is charged plainly although a
/// counter may be near its limit.
pub async fn store(config: RedisConfig, wrong_hints: u64) -> RedisStore<RedisClient> {
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let connections = RedisClient::open(config, PRODUCTION.all().to_vec()).unwrap();
    let connected = tokio::time::timeout(PATIENCE, connections.wait_until_connected()).await;
    connected.expect("the connections are made");
    RedisStore::new(connections, Prefix::default(), TimeSource::Server)
        .with_wrong_hints(wrong_hints)
}

pub async fn apply(
    store: &RedisStore<RedisClient>,
    checks: &[Check<'_>],
    accounting: Accounting,
) -> Answers {
    store.apply(&Call { checks, accounting, now: Clock::System.now(), deadline: None }).await
}

pub struct Bench {
    pub server: Server,
    pub store: RedisStore<RedisClient>,
    /// An operator's connection.
    eye: MultiplexedConnection,
}

impl Bench {
    /// Every call that may be charged plainly is.
    pub async fn new() -> Bench {
        Bench::with(|_| {}, 1).await
    }

    pub async fn with(change: impl FnOnce(&mut RedisConfig), wrong_hints: u64) -> Bench {
        let server = Server::start(&[&acl::line(acl::SINGLE)]);
        let mut config = config(TopologyConfig::Single, &[server.port]);
        change(&mut config);
        let (store, eye) = (store(config, wrong_hints).await, server.connect().await);
        Bench { server, store, eye }
    }

    pub async fn all(&self, checks: &[Check<'_>]) -> Vec<Answer> {
        apply(&self.store, checks, Accounting::AllOrNothing).await.each
    }

    /// One check, decided.
    pub async fn one(&self, check: Check<'_>) -> Outcome {
        *self.all(&[check]).await[0].outcome().expect("decided")
    }

    /// Lets the connection learn the server's time, which it knows for a second.
    pub async fn learn_time(&self) {
        let limit = bucket(1_000_000, HOUR);
        self.one(take(key(CLOCK_COUNTER), &limit, 1)).await;
    }

    /// One check that is charged plainly, if it may be.
    pub async fn plainly(&self, check: Check<'_>) -> Outcome {
        self.learn_time().await;
        self.one(check).await
    }

    pub fn stats(&self) -> SharedStoreStats {
        self.store.shared_stats()
    }

    pub async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.eye.clone()).await.unwrap()
    }

    /// The window's number and the count in a counter; zeros where there is none.
    pub async fn state(&self, check: &Check<'_>) -> (u64, u64) {
        let value: Option<u64> = self.command(&["GET", &text(check)]).await;
        let value = value.unwrap_or(0);
        (value / 10_000_000_000, value % 10_000_000_000)
    }
}

/// The hits in the counter of a check.
pub fn counted(server: &Server, check: &Check<'_>) -> u64 {
    server.count(&text(check)) % 10_000_000_000
}

/// The text of a check's key.
pub fn text(check: &Check<'_>) -> String {
    String::from_utf8(Prefix::default().key(&check.key, &check.limit.algorithm).to_vec()).unwrap()
}

/// The number of the window of `length` that the wall clock is in. The server runs on this machine.
pub fn window_now(length: u64) -> u64 {
    Clock::System.now().0 / length
}

/// Waits until the wall clock is in the first quarter of a window.
pub async fn at_a_windows_start(length: u64) -> u64 {
    while Clock::System.now().0 % length > length / 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    window_now(length)
}

/// Waits until the wall clock is in a later window, and some milliseconds longer.
pub async fn until_after_window(number: u64, length: u64, millis: u64) {
    while Clock::System.now().0 < (number + 1) * length + millis * 1_000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
