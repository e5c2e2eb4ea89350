//! A store on real servers, over the service's own connections.

use tidegate::clock::Clock;
use tidegate::domain::{Accounting, Answers, Call, Check};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{
    Address, Auth, MonotonicClock, Password, RedisConfig, TopologyConfig,
};
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::store::TimeSource;

use super::acl;
use super::redis_server::{PATIENCE, Server};

/// The login of the ACL's user.
pub fn login() -> Auth {
    Auth { user: Some(acl::USER.into()), password: Password::Fixed(acl::PASSWORD.into()) }
}

/// The service's configuration, with the least-privilege ACL, and without timeouts: a server that a
/// test freezes answers later.
pub fn config(topology: TopologyConfig, ports: &[u16]) -> RedisConfig {
    let address = |port: &u16| Address::Tcp("127.0.0.1".into(), *port);
    RedisConfig {
        topology,
        addresses: ports.iter().map(address).collect(),
        auth: login(),
        connections_per_node: 1,
        reply_timeout: PATIENCE,
        silence_max: PATIENCE,
        breaker_clock: Some(MonotonicClock::new(|| Clock::System.monotonic_now())),
        ..RedisConfig::default()
    }
}

/// A store over connections that are open.
pub async fn store(config: RedisConfig) -> RedisStore<RedisClient> {
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let connections = RedisClient::open(config, PRODUCTION.all().to_vec()).unwrap();
    let connected = tokio::time::timeout(PATIENCE, connections.wait_until_connected()).await;
    connected.expect("the connections are made");
    RedisStore::new(connections, Prefix::default(), TimeSource::Server)
}

pub async fn apply(
    store: &RedisStore<RedisClient>,
    checks: &[Check<'_>],
    accounting: Accounting,
) -> Answers {
    store.apply(&Call { checks, accounting, now: Clock::System.now(), deadline: None }).await
}

/// The hits in the counter of a fixed window's check.
pub fn counted(server: &Server, check: &Check<'_>) -> u64 {
    server.count(&text(check)) % 10_000_000_000
}

/// The text of a check's key.
pub fn text(check: &Check<'_>) -> String {
    String::from_utf8(Prefix::default().key(&check.key, &check.limit.algorithm).to_vec()).unwrap()
}
