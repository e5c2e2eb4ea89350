//! Configuration of the Redis client, as plain values that are derived from the settings.
//!
//! Not here: reading flags, the environment or files (`app`); opening connections (`dialer`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::domain::Micros;
use crate::store::redis::script::keys::Prefix;
use crate::tls::{CertificateReader, ClientCertificates, TlsError};

/// Default number of connections to each node. With 64 callers, four connections were no faster
/// than two and used 13% more CPU in the client.
pub const CONNECTIONS_PER_NODE: usize = 2;
/// Default timeout for connecting, including TLS and the Redis handshake. On a healthy network,
/// connecting takes a few milliseconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Default timeout for the reply to a command, after which the connection is closed. By then,
/// callers have long since timed out, and a longer wait would only delay the reconnect.
pub const REPLY_TIMEOUT: Duration = Duration::from_millis(250);

/// Default time for which a node may stay silent while a command is waiting, before its circuit
/// breaker opens. A fork, a slow script, or an `fsync` rarely blocks a healthy Redis server for
/// longer.
pub const SILENCE_MAX: Duration = Duration::from_millis(50);

/// Default of the minimum number of calls that share a script call. The script of a single call costs
/// Redis less than the one that calls share.
const SHARED_CALLS_MIN: usize = 2;

/// Topology of the Redis deployment: a single server, a master behind sentinels, or a cluster.
#[derive(Clone, Debug, Default)]
pub enum TopologyConfig {
    /// Single Redis server, or an address that always leads to the master, such as a proxy's
    /// address.
    #[default]
    Single,
    /// Master whose address the sentinels report. The configured addresses are the addresses of the
    /// sentinels.
    Sentinel {
        /// Name under which the sentinels monitor the master.
        master: String,
        /// Credentials for the sentinels, independent of those for the Redis servers.
        auth: Auth,
    },
    /// Redis Cluster. The configured addresses belong to some of the nodes, and the client
    /// discovers the other nodes.
    Cluster,
}

/// Address of a Redis server or sentinel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Host name or IP address (IPv6 without brackets) and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Credentials for logging in to a Redis server or sentinel.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    /// ACL user; `None` means the server's default user.
    pub user: Option<String>,
    /// Password, or a function that returns it.
    pub password: Password,
}

/// Source of the password for a Redis server or sentinel.
#[derive(Clone, Default)]
pub enum Password {
    /// No password, so connections do not log in.
    #[default]
    None,
    /// Password that does not change while the process runs.
    Fixed(String),
    /// Function that returns the password. It is called before each new connection, and once a
    /// second for each open one, which logs in again when the password has changed. If the function
    /// returns `None`, an attempt to connect fails and is retried, and open connections stay as they
    /// are.
    Reloaded(Arc<dyn Fn() -> Option<String> + Send + Sync>),
}

impl fmt::Debug for Password {
    /// Prints only the name of the variant, never the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Password::None => "None",
            Password::Fixed(_) => "Fixed(…)",
            Password::Reloaded(_) => "Reloaded(…)",
        })
    }
}

/// Configuration of the Redis client: addresses, credentials, timeouts and clocks.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// Topology of the deployment: a single server, Sentinel, or Cluster.
    pub topology: TopologyConfig,
    /// Addresses of the server, of the sentinels, or of some cluster nodes; at least one.
    pub addresses: Vec<Address>,
    /// Credentials for the Redis servers. The credentials for the sentinels are part of `topology`.
    pub auth: Auth,
    /// TLS configuration; `None` means plaintext.
    pub tls: Option<ClientCertificates>,
    /// Function that rereads the certificates before each new connection; `None` if the
    /// certificates never change.
    pub tls_reloader: Option<CertificateReader>,
    /// Database number for SELECT. Redis Cluster supports only database 0.
    pub db: i64,
    /// Prefix of every Redis key, from the setting `--cache-key-prefix`.
    pub prefix: Prefix,
    /// Version of the key format and fingerprint of the key secret, joined in one string. Each new
    /// connection compares this string with the one that another replica stored under
    /// `<prefix>tg1meta`, and logs a warning if they differ. If empty, nothing is compared.
    pub meta: String,
    /// Number of connections to each node, at least 1.
    pub connections_per_node: usize,
    /// Timeout for connecting, including TLS and the Redis handshake.
    pub connect_timeout: Duration,
    /// Timeout for the reply to a command, after which the connection is closed.
    pub reply_timeout: Duration,
    /// Time for which a node may stay silent while a command is waiting, before its circuit
    /// breaker opens.
    pub silence_max: Duration,
    /// Clock for the circuit breakers, the load estimates, the duration metrics, and the log
    /// limiter. `None` disables all of them, so calls are sent whenever a connection is open, and no
    /// log line is suppressed.
    pub breaker_clock: Option<MonotonicClock>,
    /// Minimum number of calls of one write that share one script call; fewer get a script call
    /// each. Tests set 1.
    #[doc(hidden)]
    pub shared_calls_min: usize,
    /// Single-threaded runtimes of the workers. Connections are distributed over these runtimes
    /// round-robin. A worker prefers a connection on its own runtime, because waking another
    /// thread is most of the cost of a call. If empty, connections run on the runtime that opens
    /// the client.
    pub worker_runtimes: Vec<tokio::runtime::Handle>,
    /// Interval between INFO polls of each node; `None` disables polling.
    pub info_interval: Option<Duration>,
}

/// Monotonic clock that counts microseconds since its creation. Reads the time from a function that
/// the caller provides, because only `src/clock.rs` may read the operating system's clock.
#[derive(Clone)]
pub struct MonotonicClock {
    read: Arc<dyn Fn() -> Instant + Send + Sync>,
    origin: Instant,
}

impl MonotonicClock {
    /// Creates a clock that gets the time from `read`, which is called twice per script call and
    /// twice per write.
    pub fn new(read: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        let origin = read();
        MonotonicClock { read: Arc::new(read), origin }
    }

    /// Creates a clock that stands still. Returns it with its time in microseconds, which a test
    /// sets, and the instant that is its zero.
    #[cfg(test)]
    #[allow(clippy::disallowed_methods, reason = "the clock's origin is a real instant")]
    pub(crate) fn manual() -> (MonotonicClock, Arc<AtomicU64>, Instant) {
        let (time, origin) = (Arc::<AtomicU64>::default(), Instant::now());
        let read = Arc::clone(&time);
        let elapsed = move || Duration::from_micros(read.load(Ordering::Relaxed));
        (MonotonicClock::new(move || origin + elapsed()), time, origin)
    }

    pub(crate) fn instant(&self) -> Instant {
        (self.read)()
    }

    /// Returns the time since the clock was created.
    pub(crate) fn now(&self) -> Micros {
        self.micros_at(self.instant())
    }

    /// Converts an instant to this clock's time, or to zero if the instant precedes the clock's
    /// creation.
    pub(crate) fn micros_at(&self, instant: Instant) -> Micros {
        let since = instant.saturating_duration_since(self.origin);
        Micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for MonotonicClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MonotonicClock(…)")
    }
}

impl RedisConfig {
    /// Returns this configuration for calls that wait at most `budget` for Redis: with a reply timeout
    /// of at least twice `budget`, and a `silence_max` of at least half of it.
    #[must_use]
    pub fn with_budget(self, budget: Duration) -> Self {
        RedisConfig {
            // At least twice the budget of a call, so that a slow call does not close the
            // connection.
            reply_timeout: REPLY_TIMEOUT.max(budget * 2),
            // The default is half of the default budget. With a larger budget, a node may also stay
            // silent for longer.
            silence_max: SILENCE_MAX.max(budget / 2),
            ..self
        }
    }
}

impl Default for RedisConfig {
    /// Returns the configuration for a single server at 127.0.0.1:6379 without TLS, circuit
    /// breakers, or INFO polls.
    fn default() -> Self {
        RedisConfig {
            topology: TopologyConfig::Single,
            addresses: vec![Address::Tcp("127.0.0.1".into(), 6379)],
            auth: Auth::default(),
            tls: None,
            tls_reloader: None,
            db: 0,
            prefix: Prefix::default(),
            meta: String::new(),
            connections_per_node: CONNECTIONS_PER_NODE,
            connect_timeout: CONNECT_TIMEOUT,
            reply_timeout: REPLY_TIMEOUT,
            silence_max: SILENCE_MAX,
            breaker_clock: None,
            worker_runtimes: Vec::new(),
            info_interval: None,
            shared_calls_min: SHARED_CALLS_MIN,
        }
    }
}

/// Reason why a Redis client configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisConfigError {
    /// The list of addresses is empty.
    NoAddress,
    /// A certificate or private key cannot be used.
    Tls(TlsError),
}

impl fmt::Display for RedisConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisConfigError::NoAddress => f.write_str("no Redis address was given"),
            RedisConfigError::Tls(reason) => write!(f, "TLS towards Redis: {reason}"),
        }
    }
}

impl std::error::Error for RedisConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_budget_raises_the_reply_timeout_and_the_permitted_silence() {
        let millis = |budget| {
            let config = RedisConfig::default().with_budget(Duration::from_millis(budget));
            (config.reply_timeout.as_millis(), config.silence_max.as_millis())
        };
        assert_eq!(millis(100), (250, 50));
        assert_eq!(millis(126), (252, 63));
        assert_eq!(millis(2_000), (4_000, 1_000));
    }

    #[test]
    fn credentials_are_not_printed() {
        let password = Password::Fixed("hunter2".to_owned());
        let auth = Auth { user: Some("ann".to_owned()), password };
        assert_eq!(format!("{auth:?}"), "Auth { user: Some(\"ann\"), password: Fixed(…) }");
        let reloaded = Password::Reloaded(Arc::new(|| Some("hunter2".to_owned())));
        assert_eq!(format!("{reloaded:?}"), "Reloaded(…)");
    }
}
