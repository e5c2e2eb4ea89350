//! Options of a limiter with counters in Redis: addresses, credentials, TLS, timeouts.
//!
//! Not here: the client (`store::redis::client`), the stack with the store (`redis_stack`).

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::any_store::AnyStore;
use super::error::ConfigError;
use crate::clock::Clock;
use crate::policy::Secret;
use crate::resilience::stack::StackConfig;
use crate::store::redis::client::config::{Address, Auth, Password, RedisConfig, TopologyConfig};
use crate::store::redis::script::keys::Prefix;
use crate::tls::ClientCertificates;

/// Allowed range of the time that a call may wait for Redis. The setting `--redis-budget` has the
/// same range.
const BUDGET_RANGE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

/// Allowed range of the number of replicas. The setting `--replicas` has the same range.
const REPLICAS_RANGE: RangeInclusive<u32> = 1..=10_000;

/// Options of a [`Limiter`](crate::Limiter) whose counters are in Redis or Valkey. Needs the
/// feature `redis`.
///
/// A Lua script decides each call in one round trip, with the clock of the Redis server. If Redis
/// does not reply in time, the `on_store_failure` of each limit applies: by default, this process
/// decides with its share of the limit.
///
/// ```no_run
/// use tidegate::{Descriptor, Limiter, RedisOptions};
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let redis = RedisOptions::single("redis.example", 6379).password("hunter2").replicas(3);
///     let limiter = Limiter::builder()
///         .policy("api.yaml", include_str!("../../config/first.yaml"))
///         .redis(redis)
///         .build()?;
///     let connected = limiter.wait_until_connected();
///     tokio::time::timeout(std::time::Duration::from_secs(1), connected).await?;
///     let decision = limiter.check("edge", &[Descriptor::new([("api_token", "t0")])]).await?;
///     println!("{} by {}", decision.is_admitted(), decision.source());
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisOptions {
    client: RedisConfig,
    key_prefix: String,
    stack: StackConfig,
}

impl RedisOptions {
    /// Creates options for one server, or for an address that always routes to the master. `host`
    /// is a host name or an IP address. IPv6 addresses are written without brackets.
    pub fn single(host: impl Into<String>, port: u16) -> RedisOptions {
        RedisOptions::new(TopologyConfig::Single, vec![Address::Tcp(host.into(), port)])
    }

    /// Creates options for one server that listens on a Unix socket.
    pub fn unix_socket(path: impl Into<PathBuf>) -> RedisOptions {
        RedisOptions::new(TopologyConfig::Single, vec![Address::Unix(path.into())])
    }

    /// Creates options for the master that sentinels report. `sentinels` are the addresses of all
    /// sentinels, because a new master is accepted only if a majority of them reports it.
    pub fn sentinel<H: Into<String>>(
        master: impl Into<String>,
        sentinels: impl IntoIterator<Item = (H, u16)>,
    ) -> RedisOptions {
        let topology = TopologyConfig::Sentinel { master: master.into(), auth: Auth::default() };
        RedisOptions::new(topology, tcp_addresses(sentinels))
    }

    /// Creates options for a Redis Cluster. `nodes` are the addresses of some nodes, at least one;
    /// the other nodes are discovered.
    pub fn cluster<H: Into<String>>(nodes: impl IntoIterator<Item = (H, u16)>) -> RedisOptions {
        RedisOptions::new(TopologyConfig::Cluster, tcp_addresses(nodes))
    }

    fn new(topology: TopologyConfig, addresses: Vec<Address>) -> RedisOptions {
        RedisOptions {
            client: RedisConfig { topology, addresses, ..RedisConfig::default() },
            key_prefix: String::new(),
            stack: StackConfig::default(),
        }
    }

    /// Sets the ACL user to authenticate as. Without this option, connections authenticate as the
    /// default user.
    pub fn user(mut self, user: impl Into<String>) -> RedisOptions {
        self.client.auth.user = Some(user.into());
        self
    }

    /// Sets the password to authenticate with.
    pub fn password(mut self, password: impl Into<String>) -> RedisOptions {
        self.client.auth.password = Password::Fixed(password.into());
        self
    }

    /// Authenticates to the sentinels with a password, as `user` or, if `user` is `None`, as the
    /// default user. Without this option, connections to sentinels do not authenticate. Has no
    /// effect without sentinels.
    pub fn sentinel_login(
        mut self,
        user: Option<String>,
        password: impl Into<String>,
    ) -> RedisOptions {
        if let TopologyConfig::Sentinel { auth, .. } = &mut self.client.topology {
            *auth = Auth { user, password: Password::Fixed(password.into()) };
        }
        self
    }

    /// Selects a database (default 0). A cluster has only database 0.
    pub fn database(mut self, number: u32) -> RedisOptions {
        self.client.db = i64::from(number);
        self
    }

    /// Connects over TLS. The certificate of each server must be issued for the host name in its
    /// address, by a certificate authority that the operating system trusts.
    pub fn tls(mut self) -> RedisOptions {
        self.client.tls.get_or_insert_default();
        self
    }

    /// Connects over TLS and trusts only the given CA certificates, as PEM text.
    pub fn tls_ca(mut self, pem: impl Into<Vec<u8>>) -> RedisOptions {
        self.client.tls.get_or_insert_with(ClientCertificates::default).authority =
            Some(pem.into());
        self
    }

    /// Connects over TLS with a client certificate: the certificate chain and the private key, both
    /// as PEM text.
    pub fn tls_client_certificate(
        mut self,
        chain_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> RedisOptions {
        let identity = Some((chain_pem.into(), key_pem.into()));
        self.client.tls.get_or_insert_with(ClientCertificates::default).identity = identity;
        self
    }

    /// Sets the prefix of all keys in Redis: at most 64 bytes, without braces, whitespace, or
    /// control characters (default: empty). In a Tidegate service, this is the setting
    /// `CACHE_KEY_PREFIX`.
    pub fn key_prefix(self, prefix: impl Into<String>) -> RedisOptions {
        RedisOptions { key_prefix: prefix.into(), ..self }
    }

    /// Sets the maximum time that a call waits for Redis, from 1 ms to 60 s (default 100 ms). The
    /// timer has a resolution of 1 ms.
    pub fn budget(mut self, budget: Duration) -> RedisOptions {
        self.stack.budget = budget;
        self
    }

    /// Sets the number of processes that share the limits, from 1 to 10,000 (default 1). While
    /// Redis does not reply, each process enforces its share of every limit.
    pub fn replicas(mut self, replicas: u32) -> RedisOptions {
        self.stack.replicas = replicas;
        self
    }

    /// Validates the options, starts connecting to Redis in the background, and returns the store.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] if an option is invalid or there is no tokio runtime.
    pub(super) fn open_store(
        &self,
        secret: &Secret,
        keys_max: usize,
        clock: Clock,
    ) -> Result<AnyStore, ConfigError> {
        let stack = self.stack;
        if !BUDGET_RANGE.contains(&stack.budget) {
            return Err(ConfigError::Option("budget: must be from 1 ms to 60 s".to_owned()));
        }
        if !REPLICAS_RANGE.contains(&stack.replicas) {
            return Err(ConfigError::Option("replicas: must be from 1 to 10000".to_owned()));
        }
        if self.client.db != 0 && matches!(self.client.topology, TopologyConfig::Cluster) {
            return Err(ConfigError::Option("database: a cluster has database 0 only".to_owned()));
        }
        let prefix = Prefix::new(&self.key_prefix)
            .map_err(|error| ConfigError::Option(format!("key_prefix: {error}")))?;
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(ConfigError::NoRuntime);
        }
        let client = RedisConfig { prefix, ..self.client.clone() };
        let opened = AnyStore::open_redis(client, stack, secret, keys_max, clock);
        opened.map_err(|error| ConfigError::Option(error.to_string()))
    }
}

fn tcp_addresses<H: Into<String>>(addresses: impl IntoIterator<Item = (H, u16)>) -> Vec<Address> {
    addresses.into_iter().map(|(host, port)| Address::Tcp(host.into(), port)).collect()
}
