//! What the connections to Redis are made from: plain values that the settings fill in.
//!
//! Not here: reading them from flags, the environment or files; opening connections (`dial`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::Micros;
use crate::store::redis::keys::Prefix;

/// The two connections per node that measurements ask for: more sockets mostly cost (twice the connections at
/// 64 callers answered no faster and took 13 % more of the client's CPU).
pub const CONNECTIONS_PER_NODE: usize = 2;
/// Connecting, with TLS and the handshake, on a healthy network takes a few milliseconds. A node
/// that needs longer than this is treated as down and dialled again.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// A connection whose oldest reply is this late is dropped: callers gave up long ago (6 ms), and
/// what could still answer later would only keep the connection from a node that works.
pub const OVERDUE: Duration = Duration::from_millis(250);

/// How the servers are arranged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TopologyConfig {
    /// One server, or an address that always leads to the master.
    #[default]
    Single,
    /// The addresses are sentinels that know the master by this name.
    Sentinel {
        /// The name under which the sentinels watch the master.
        master: String,
        /// How to log in to the sentinels themselves.
        auth: Auth,
    },
    /// The addresses are some nodes of a Redis Cluster; the rest are found through them.
    Cluster,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A host name or an IP address (IPv6 without brackets), and a port.
    Tcp(String, u16),
    /// A unix socket's path.
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

/// How to log in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// The ACL user; `None` is the server's default user.
    pub user: Option<String>,
    /// The password.
    pub password: Password,
}

/// Where the password comes from.
#[derive(Clone, Default)]
pub enum Password {
    /// The server asks for none.
    #[default]
    None,
    /// A fixed one.
    Fixed(String),
    /// Asked for again at every dial, so that a rotated password file is followed: after a
    /// rotation the old connections live on, and every new one logs in with the new password.
    /// `None` means that it cannot be had at the moment; the dial fails and is repeated.
    Asked(Arc<dyn Fn() -> Option<String> + Send + Sync>),
}

impl fmt::Debug for Password {
    /// Says which kind it is, never the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Password::None => "None",
            Password::Fixed(_) => "Fixed(…)",
            Password::Asked(_) => "Asked(…)",
        })
    }
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Password::None, Password::None) => true,
            (Password::Fixed(one), Password::Fixed(other)) => one == other,
            (Password::Asked(one), Password::Asked(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for Password {}

/// TLS towards Redis (and towards sentinels).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities to trust, as PEM; `None` means the machine's own.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate chain and key, as PEM.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// Accept a valid certificate that is made out to another host.
    pub skip_hostname: bool,
}

impl fmt::Debug for Tls {
    /// Says what is set, never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("own_ca", &self.ca.is_some())
            .field("client_certificate", &self.client.is_some())
            .field("skip_hostname", &self.skip_hostname)
            .finish()
    }
}

/// Asked for certificates at every dial, so that replaced files are followed: connections that
/// are open live on. `None` from it means that they cannot be had at the moment, and those before
/// stay.
#[derive(Clone)]
pub struct TlsReloader(Arc<dyn Fn() -> Option<Tls> + Send + Sync>);

impl TlsReloader {
    /// Certificates that a function reads.
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

/// Everything the connections are made from.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// How the servers are arranged.
    pub topology: TopologyConfig,
    /// At least one: the server, the sentinels, or some nodes of the cluster.
    pub addresses: Vec<Address>,
    /// How to log in to the servers.
    pub auth: Auth,
    /// TLS, where it is spoken.
    pub tls: Option<Tls>,
    /// The same, asked for again at every dial; `None`: it never changes.
    pub tls_again: Option<TlsReloader>,
    /// The database; a cluster only has 0.
    pub db: i64,
    /// What every key starts with (CACHE_KEY_PREFIX).
    pub prefix: Prefix,
    /// What replicas compare under `<prefix>tg1meta` when they connect: the secret's fingerprint
    /// and the format's version. Empty: nothing is compared.
    pub meta: String,
    /// Connections per node, at least 1.
    pub connections: usize,
    /// How long connecting may take, handshake included.
    pub connect_timeout: Duration,
    /// How late a reply may be before its connection is dropped.
    pub overdue: Duration,
    /// The time by which each node's breaker judges and waits are measured; `None`: there is no
    /// breaker, and nothing is measured.
    pub breaker: Option<Monotonic>,
    /// Single-threaded runtimes whose callers are served by a connection on the same one, where there is
    /// one: then no thread has to wake another, which is most of what a call costs. Connections are dealt
    /// to them in turn; empty: connections live on the runtime that opens them.
    pub homes: Vec<tokio::runtime::Handle>,
    /// How often each node is asked what it says of itself; `None`: never.
    pub census: Option<Duration>,
}

/// A clock that never steps back, in microseconds since whenever: handed in, because nobody here
/// asks for the time.
#[derive(Clone)]
pub struct Monotonic(Arc<dyn Fn() -> Micros + Send + Sync>);

impl Monotonic {
    /// A clock that is read by a function. It is read twice for each item and for each write.
    pub fn new(read: impl Fn() -> Micros + Send + Sync + 'static) -> Self {
        Monotonic(Arc::new(read))
    }

    pub(crate) fn now(&self) -> Micros {
        (self.0)()
    }
}

impl fmt::Debug for Monotonic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Monotonic(…)")
    }
}

impl Default for RedisConfig {
    /// A plain server on the loopback, with nothing compared.
    fn default() -> Self {
        RedisConfig {
            topology: TopologyConfig::Single,
            addresses: vec![Address::Tcp("127.0.0.1".into(), 6379)],
            auth: Auth::default(),
            tls: None,
            tls_again: None,
            db: 0,
            prefix: Prefix::default(),
            meta: String::new(),
            connections: CONNECTIONS_PER_NODE,
            connect_timeout: CONNECT_TIMEOUT,
            overdue: OVERDUE,
            breaker: None,
            homes: Vec::new(),
            census: None,
        }
    }
}

/// Why connections cannot be made from a configuration at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisConfigError {
    /// No address was given.
    NoAddress,
    /// A certificate, key or authority does not parse.
    Tls(String),
}

impl fmt::Display for RedisConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisConfigError::NoAddress => f.write_str("no Redis address was given"),
            RedisConfigError::Tls(fault) => write!(f, "TLS towards Redis: {fault}"),
        }
    }
}

impl std::error::Error for RedisConfigError {}
