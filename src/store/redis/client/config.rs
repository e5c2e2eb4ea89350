//! Configuration of the Redis client: plain values, filled in from the settings.
//!
//! Not here: reading flags, the environment or files (`app`); opening connections (`dialer`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::Micros;
use crate::store::redis::keys::Prefix;

/// Measured: with 64 callers, twice as many connections answered no faster and took 13 % more of
/// the client's CPU.
pub const CONNECTIONS_PER_NODE: usize = 2;
/// On a healthy network connecting takes a few milliseconds, TLS and handshake included. A node
/// that takes longer than this counts as down.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// A connection whose oldest reply is this late is closed. Callers gave up long before (6 ms), and
/// waiting longer would only delay the reconnect.
pub const REPLY_TIMEOUT: Duration = Duration::from_millis(250);

/// How the servers are arranged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TopologyConfig {
    /// One server, or an address that always leads to the master.
    #[default]
    Single,
    /// The addresses are those of sentinels.
    Sentinel {
        /// The name under which the sentinels monitor the master.
        master: String,
        /// Credentials for the sentinels themselves.
        auth: Auth,
    },
    /// The addresses are some nodes of a Redis Cluster; the rest are discovered.
    Cluster,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A host name or an IP address (IPv6 without brackets), and a port.
    Tcp(String, u16),
    /// The path of a unix socket.
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

/// Credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// The ACL user; `None` is the server's default user.
    pub user: Option<String>,
    /// The password.
    pub password: Password,
}

/// A password, or where to get it.
#[derive(Clone, Default)]
pub enum Password {
    /// No password.
    #[default]
    None,
    /// A fixed one.
    Fixed(String),
    /// Read again for every new connection, so that a rotated password file takes effect: open
    /// connections stay, new ones use the new password. `None` from the function fails the
    /// connection attempt, which is then retried.
    Reloaded(Arc<dyn Fn() -> Option<String> + Send + Sync>),
}

impl fmt::Debug for Password {
    /// Prints the variant, never the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Password::None => "None",
            Password::Fixed(_) => "Fixed(…)",
            Password::Reloaded(_) => "Reloaded(…)",
        })
    }
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Password::None, Password::None) => true,
            (Password::Fixed(one), Password::Fixed(other)) => one == other,
            (Password::Reloaded(one), Password::Reloaded(other)) => Arc::ptr_eq(one, other),
            (Password::None | Password::Fixed(_) | Password::Reloaded(_), _) => false,
        }
    }
}

impl Eq for Password {}

/// TLS towards Redis and the sentinels.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The trusted certificate authorities, PEM. `None`: those of the system.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate chain and key, PEM.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// Accept a valid certificate that was issued for another host name.
    pub skip_hostname: bool,
}

impl fmt::Debug for Tls {
    /// Prints which parts are set, never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("own_ca", &self.ca.is_some())
            .field("client_certificate", &self.client.is_some())
            .field("skip_hostname", &self.skip_hostname)
            .finish()
    }
}

/// Reads the certificates again for every new connection, so that replaced files take effect; open
/// connections stay. If the function returns `None`, the former certificates stay in use.
#[derive(Clone)]
pub struct TlsReloader(Arc<dyn Fn() -> Option<Tls> + Send + Sync>);

impl TlsReloader {
    /// Reloads certificates by calling `read`.
    pub fn new(read: impl Fn() -> Option<Tls> + Send + Sync + 'static) -> Self {
        TlsReloader(Arc::new(read))
    }

    pub(crate) fn read(&self) -> Option<Tls> {
        (self.0)()
    }
}

impl fmt::Debug for TlsReloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsReloader(…)")
    }
}

/// Configuration of the Redis client.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// How the servers are arranged.
    pub topology: TopologyConfig,
    /// The server, the sentinels, or some nodes of the cluster; at least one.
    pub addresses: Vec<Address>,
    /// Credentials for the servers.
    pub auth: Auth,
    /// TLS; `None`: plain text.
    pub tls: Option<Tls>,
    /// Reloads the certificates. `None`: they never change.
    pub tls_reloader: Option<TlsReloader>,
    /// The database number. A cluster has only 0.
    pub db: i64,
    /// The prefix of every key (CACHE_KEY_PREFIX).
    pub prefix: Prefix,
    /// The key format's version and the fingerprint of the key secret. Each new connection compares
    /// it with what other replicas stored under `<prefix>tg1meta`. Empty: not compared.
    pub meta: String,
    /// At least 1.
    pub connections_per_node: usize,
    /// Time limit for connecting, handshake included.
    pub connect_timeout: Duration,
    /// A connection whose oldest reply is later than this is closed.
    pub reply_timeout: Duration,
    /// The clock of the circuit breakers and of the measured waits. `None`: no breakers, and
    /// nothing is measured.
    pub breaker_clock: Option<MonotonicClock>,
    /// The workers' single-threaded runtimes. Connections are distributed over them in turn, and a
    /// worker's calls use a connection on its own runtime if there is one: waking another thread is
    /// most of what a call costs. Empty: connections run on the runtime that opens the client.
    pub worker_runtimes: Vec<tokio::runtime::Handle>,
    /// How often INFO is polled on each node. `None`: never.
    pub info_interval: Option<Duration>,
}

/// A clock that never goes back, in microseconds since an arbitrary moment. Passed in, because
/// nothing below `app` reads the time.
#[derive(Clone)]
pub struct MonotonicClock(Arc<dyn Fn() -> Micros + Send + Sync>);

impl MonotonicClock {
    /// A clock read by `read`, which is called twice per script call and twice per write.
    pub fn new(read: impl Fn() -> Micros + Send + Sync + 'static) -> Self {
        MonotonicClock(Arc::new(read))
    }

    pub(crate) fn now(&self) -> Micros {
        (self.0)()
    }
}

impl fmt::Debug for MonotonicClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MonotonicClock(…)")
    }
}

impl Default for RedisConfig {
    /// A plain server on the loopback interface; nothing is compared.
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
            breaker_clock: None,
            worker_runtimes: Vec::new(),
            info_interval: None,
        }
    }
}

/// Why a client cannot be created from a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisConfigError {
    /// There is no address.
    NoAddress,
    /// A certificate or key does not parse.
    Tls(String),
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
