//! Opens connections to Redis: connects, logs in, and loads the scripts.
//!
//! Not here: sending script calls (`connection`), finding nodes (`sentinel`, `slot_refresh`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::{Connection, Manager, Pool, PoolError};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, Value,
};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::client_tls::RedisTlsConnector;
use super::config::{Address, Auth, Password, RedisConfig, RedisConfigError, TopologyConfig};
use super::error_reply::{ErrorReply, failure_kind, reply_text};
use super::info::NodeInfo;
use super::loss_detector::LossDetector;
use super::misconfiguration::{find_advice, info_field};
use super::node_stats::NodeStats;
use super::send_error::SendError;
use crate::domain::{FailureKind, Lock, LogLimiter};
use crate::store::redis::script::call::encode_probe;
use crate::store::redis::script::library::{DECIDE, Script};

/// Idle time before the first TCP keepalive probe. After three unanswered probes, one second apart,
/// the connection is closed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 3;
/// TCP user timeout: the connection is closed if written data is not acknowledged for this long.
/// Equal to the time that the keepalive probes take to detect a dead peer.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(8);
/// Time to live of the key `tg1meta` in seconds, renewed by every connection. One week, so that
/// replicas with different key secrets are detected even if they connect several days apart.
const META_EXPIRY_S: u64 = 7 * 24 * 3600;
/// Name of Tidegate's connections, as shown by CLIENT LIST.
const CLIENT_NAME: &str = "tidegate";

/// Maximum number of failures that are kept, so that one that returns still has its advice.
const FAILURES_MAX: usize = 16;

/// Failure of a node: why it cannot be used, or the error that it replied with.
#[derive(Debug)]
struct NodeFailure {
    node: Address,
    kind: FailureKind,
    reason: String,
    advice: Option<String>,
}

/// Configuration, scripts, and certificates shared by all connections of a client.
#[derive(Debug)]
pub(crate) struct ClientContext {
    pub(crate) config: RedisConfig,
    scripts: Vec<&'static Script>,
    tls: Option<RedisTlsConnector>,
    pub(crate) log_limiter: LogLimiter,
    /// Number of times that a server may have lost counters.
    pub(crate) losses: AtomicU64,
    /// Number of connections to any node that were lost since the client was opened.
    pub(crate) lost_connections: AtomicU64,
    /// Latest failures of nodes, each once, the latest first.
    failures: Lock<Vec<NodeFailure>>,
}

impl ClientContext {
    /// Validates `config` and creates the context. `scripts` are loaded on every new connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the list of addresses is empty or a certificate cannot be parsed.
    pub(crate) fn new(
        config: RedisConfig,
        scripts: Vec<&'static Script>,
    ) -> Result<ClientContext, RedisConfigError> {
        if config.addresses.is_empty() {
            return Err(RedisConfigError::NoAddress);
        }
        let parse = |tls| RedisTlsConnector::new(tls, config.tls_reloader.clone());
        let tls = config.tls.as_ref().map(parse).transpose().map_err(RedisConfigError::Tls)?;
        let log_limiter = match config.breaker_clock.clone() {
            Some(clock) => LogLimiter::new(1, move || clock.instant()),
            None => LogLimiter::unlimited(),
        };
        let (losses, lost_connections, failures) = Default::default();
        Ok(ClientContext { config, scripts, tls, log_limiter, losses, lost_connections, failures })
    }

    /// Stores the latest failure of a node, for [`failure`](Self::failure) to return.
    pub(crate) fn set_failure(
        &self,
        node: &Address,
        kind: FailureKind,
        reason: &str,
        advice: Option<&str>,
    ) {
        let mut failures = self.failures.lock();
        let is_same = |known: &NodeFailure| known.node == *node && known.reason == reason;
        let known = failures.iter().position(is_same).map(|at| failures.remove(at));
        let mut failure = known.unwrap_or_else(|| {
            let (node, reason) = (node.clone(), reason.to_owned());
            NodeFailure { node, kind, reason, advice: None }
        });
        failure.advice = advice.map(str::to_owned).or(failure.advice);
        failures.truncate(FAILURES_MAX - 1);
        failures.insert(0, failure);
    }

    /// Returns the latest failure, with its node and the advice, if it is the reason for a failure of
    /// this kind: it has the same kind, or kept us from sending calls.
    pub(crate) fn failure(&self, kind: FailureKind) -> Option<String> {
        let is_unsent = matches!(kind, FailureKind::NotConnected | FailureKind::BreakerOpen);
        let failures = self.failures.lock();
        let mut latest = failures.iter().filter(|failure| is_unsent || failure.kind == kind);
        let NodeFailure { node, reason, advice, .. } = latest.next()?;
        Some(match advice {
            Some(advice) => format!("{node}: {reason}; {advice}"),
            None => format!("{node}: {reason}"),
        })
    }

    /// Returns advice on a failure, and stores both.
    pub(crate) async fn explain(
        &self,
        node: &Address,
        kind: FailureKind,
        auth: &Auth,
        reason: &str,
    ) -> Option<String> {
        let advice = find_advice(self, node, auth, reason).await;
        self.set_failure(node, kind, reason, advice.as_deref());
        advice
    }

    /// Stores and logs a failure, at most once a minute for each kind and node. A separate task looks
    /// for the cause and writes the log line, so that nobody waits for it.
    pub(crate) fn log_failure(self: &Arc<Self>, node: &Address, kind: FailureKind, reason: &str) {
        self.set_failure(node, kind, reason, None);
        let Some(suppressed) = self.log_limiter.admit(kind.as_str(), node) else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        let (context, node, reason) = (Arc::clone(self), node.clone(), reason.to_owned());
        runtime.spawn(async move {
            let advice = context.explain(&node, kind, &context.config.auth, &reason).await;
            match kind {
                FailureKind::NotConnected => {
                    tracing::warn!(%node, advice, reason, suppressed, "cannot connect to Redis");
                }
                FailureKind::Denied if reason.starts_with("NOAUTH") => {
                    tracing::error!(%node, advice, reason, suppressed, "Redis requires a password");
                }
                FailureKind::Denied => {
                    tracing::error!(
                        %node, advice, reason, suppressed, "Redis denied the login or a command"
                    );
                }
                FailureKind::ReadOnly => {
                    tracing::warn!(
                        %node, advice, reason, suppressed, "the Redis node is not a master"
                    );
                }
                kind => {
                    let kind = kind.as_str();
                    tracing::warn!(
                        %node, kind, advice, reason, suppressed, "Redis replied with an error"
                    );
                }
            }
        });
    }

    /// Counts and logs a possible loss of counters on the server at `node`.
    pub(crate) fn record_loss(&self, node: &Address, reason: &'static str) {
        self.losses.fetch_add(1, Ordering::AcqRel);
        if let Some(suppressed) = self.log_limiter.admit("lost counters", node) {
            tracing::warn!(%node, reason, suppressed, "Redis may have lost counters");
        }
    }

    /// Sends one command over a new connection and returns the reply. Used for topology queries and
    /// INFO, never for script calls.
    ///
    /// # Errors
    ///
    /// Returns an error if the password cannot be read, connecting fails, or the command fails.
    pub(crate) async fn query(
        &self,
        address: &Address,
        auth: &Auth,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        let mut connection = self.open(address, auth, 0).await?;
        match connection.req_packed_command(command).await? {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    /// Opens a connection for commands that are not on the path of a request. Connecting, and each
    /// reply, may take the connect timeout.
    ///
    /// # Errors
    ///
    /// Returns an error if the password cannot be read or connecting fails.
    pub(crate) async fn open(
        &self,
        address: &Address,
        auth: &Auth,
        db: i64,
    ) -> Result<MultiplexedConnection, RedisError> {
        let login = login_parameters(auth, read_password(auth)?.as_deref(), db);
        let replies =
            AsyncConnectionConfig::new().set_response_timeout(Some(self.config.connect_timeout));
        self.connect(address, login, replies).await
    }

    /// Opens a connection and logs in, within the connect timeout. A Unix socket never uses TLS.
    ///
    /// `deadpool_redis` opens the connections without TLS. A connection is taken out of its pool
    /// immediately, because its task keeps it, and a pool sends UNWATCH before each reuse, which the
    /// ACL in the documentation does not permit and sentinels do not support.
    async fn connect(
        &self,
        address: &Address,
        login: RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let config = config.set_connection_timeout(Some(self.config.connect_timeout));
        let (Some(tls), Address::Tcp(host, port)) = (&self.tls, address) else {
            let manager = Manager::new_with_config(connection_info(address, login)?, config)?;
            let pool = Pool::builder(manager).max_size(1).build().map_err(std::io::Error::other)?;
            return match pool.get().await {
                Ok(connection) => Ok(Connection::take(connection)),
                Err(PoolError::Backend(error)) => Err(error),
                Err(other) => Err(std::io::Error::other(other).into()),
            };
        };
        let connect = async {
            let socket = TcpStream::connect((host.as_str(), *port)).await?;
            socket.set_nodelay(true)?;
            SockRef::from(&socket).set_tcp_keepalive(&keepalive())?;
            SockRef::from(&socket).set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))?;
            let stream = tls.handshake(host, socket).await?;
            MultiplexedConnection::new_with_config(&login, stream, config).await
        };
        let Ok(connected) = tokio::time::timeout(self.config.connect_timeout, connect).await else {
            return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        };
        let (connection, driver) = connected?;
        // Ends when the last handle of the connection is dropped.
        tokio::spawn(driver);
        Ok(connection)
    }
}

fn login_parameters(auth: &Auth, password: Option<&str>, db: i64) -> RedisConnectionInfo {
    // With RESP3, `redis` reports a broken connection immediately.
    let mut login = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_skip_set_lib_name()
        .set_db(db);
    if let Some(user) = &auth.user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES)
}

/// Returns the address, login and TCP parameters of a connection without TLS.
fn connection_info(
    address: &Address,
    login: RedisConnectionInfo,
) -> Result<ConnectionInfo, RedisError> {
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive())
        .set_user_timeout(TCP_USER_TIMEOUT);
    let address = match address {
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        Address::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
    };
    let info = address.into_connection_info()?;
    Ok(info.set_redis_settings(login).set_tcp_settings(tcp))
}

/// Returns the password, `None` if connections do not log in, or an error if it cannot be read.
pub(super) fn read_password(auth: &Auth) -> Result<Option<String>, RedisError> {
    match &auth.password {
        Password::None => Ok(None),
        Password::Fixed(password) => Ok(Some(password.clone())),
        Password::Reloaded(read) => read().map(Some).ok_or_else(|| {
            (redis::ErrorKind::AuthenticationFailed, "the password cannot be read").into()
        }),
    }
}

/// Error while opening a connection: the kind of error reply or, for any other failure,
/// [`FailureKind::NotConnected`].
#[derive(Debug)]
pub(crate) struct ConnectError {
    pub(crate) kind: FailureKind,
    pub(crate) reason: String,
}

impl ConnectError {
    pub(crate) fn failed(reason: impl Into<String>) -> ConnectError {
        ConnectError { kind: FailureKind::NotConnected, reason: reason.into() }
    }
}

impl From<RedisError> for ConnectError {
    fn from(error: RedisError) -> Self {
        let (kind, reason) = match (error.kind(), error.code()) {
            (redis::ErrorKind::Parse, _) => {
                let reason = "the answer is not in the Redis protocol".to_owned();
                (FailureKind::NotConnected, reason)
            }
            // The server's own text is about HELLO, which no operator has sent.
            (_, Some("NOAUTH")) => {
                (FailureKind::Denied, "NOAUTH authentication required".to_owned())
            }
            (_, Some(code)) => {
                let details = error.detail();
                (failure_kind(code, details.unwrap_or_default()), reply_text(code, details))
            }
            (kind, None) => {
                let is_denied = kind == redis::ErrorKind::AuthenticationFailed;
                let kind = if is_denied { FailureKind::Denied } else { FailureKind::NotConnected };
                // A certificate's names are shown as Rust values: DnsName("redis.example").
                (kind, error.to_string().replace("DnsName(\"", "").replace("\")", ""))
            }
        };
        ConnectError { kind, reason }
    }
}

/// Dialer that opens the connections of one [`Connection`](super::connection_state::Connection) task.
pub(crate) struct Dialer {
    pub(super) context: Arc<ClientContext>,
    pub(super) address: Address,
    /// Password of the last login.
    pub(super) password: Option<String>,
    pub(super) stats: Arc<NodeStats>,
    pub(super) signal: Arc<ConnectionSignal>,
    pub(super) loss_detector: Arc<LossDetector>,
}

/// Signal that wakes the task of a connection when the connection breaks or the node's circuit
/// breaker opens.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSignal {
    notify: Notify,
    is_broken: AtomicBool,
}

impl ConnectionSignal {
    /// Wakes the connection's task.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Waits until [`wake`](Self::wake) is called.
    pub(crate) async fn wait(&self) {
        self.notify.notified().await;
    }

    /// Returns whether the current connection has broken.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    fn set_broken(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.wake();
    }
}

impl Dialer {
    /// Opens a connection: logs in, loads every script and, with sentinels, checks that the server
    /// is a master.
    pub(crate) async fn connect(&mut self) -> Result<MultiplexedConnection, ConnectError> {
        // An earlier connection may have broken after it was given up.
        self.signal.is_broken.store(false, Ordering::Release);
        let config = &self.context.config;
        self.password = read_password(&config.auth)?;
        let login = login_parameters(&config.auth, self.password.as_deref(), config.db);
        let mut connection =
            self.context.connect(&self.address, login, self.connection_config()).await?;
        self.handshake(&mut connection).await?;
        Ok(connection)
    }

    /// Returns whether the password can change while a connection is open.
    pub(super) fn can_log_in_again(&self) -> bool {
        matches!(self.context.config.auth.password, Password::Reloaded(_))
    }

    /// Logs in again over an open connection if the password has changed, so that no connection
    /// outlives its password: a token of a cloud provider ends after minutes or hours, and then the
    /// server closes the connection. Nobody waits for the reply. If the server rejects the new
    /// password, the connection stays logged in, and the error is logged.
    pub(super) fn log_in_again(&mut self, connection: &MultiplexedConnection) {
        let auth = &self.context.config.auth;
        // A password that cannot be read is logged by its reader.
        let Ok(Some(password)) = read_password(auth) else { return };
        if self.password.as_ref() == Some(&password) {
            return;
        }
        let mut command = redis::cmd("AUTH");
        command.arg(&auth.user).arg(&password);
        self.password = Some(password);
        let (context, node) = (Arc::clone(&self.context), self.address.clone());
        let mut connection = connection.clone();
        tokio::spawn(async move {
            if let Ok(Value::ServerError(error)) = connection.req_packed_command(&command).await {
                let ConnectError { kind, reason } = RedisError::from(error).into();
                context.log_failure(&node, kind, &reason);
            }
        });
    }

    /// Returns the configuration of a connection: its reply timeout, and the callback for when it
    /// breaks.
    fn connection_config(&self) -> AsyncConnectionConfig {
        let signal = Arc::clone(&self.signal);
        let notify = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                signal.set_broken();
            }
            Ok::<(), std::convert::Infallible>(())
        };
        AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.context.config.reply_timeout))
            .set_push_sender(notify)
    }

    async fn handshake(&self, connection: &mut MultiplexedConnection) -> Result<(), ConnectError> {
        let config = &self.context.config;
        let checks_role = matches!(config.topology, TopologyConfig::Sentinel { .. });
        let meta_key = config.prefix.meta_key();
        let mut commands = Pipeline::new();
        commands.cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME);
        for script in &self.context.scripts {
            commands.add_command(script.load_command());
        }
        if checks_role {
            commands.cmd("ROLE");
        }
        let probe = self.probe_take();
        let is_probed = probe.is_some();
        if let Some(probe) = probe {
            commands.add_command(probe);
        }
        if !config.meta.is_empty() {
            commands.cmd("GET").arg(&meta_key);
        }
        // Two commands, because servers before 7.0 accept a single section.
        commands.cmd("INFO").arg("server");
        commands.cmd("INFO").arg("memory");
        let meta_before = self.loss_detector.known_meta();
        let replies = connection.req_packed_commands(&commands, 0, commands.len()).await?;
        let mut replies = replies.into_iter();
        // The client name only helps operators, so an error is ignored.
        let _ = replies.next();
        for reply in replies.by_ref().take(self.context.scripts.len()) {
            if let Value::ServerError(error) = reply {
                return Err(RedisError::from(error).into());
            }
        }
        if checks_role {
            require_master(replies.next())?;
        }
        let probe_reply = if is_probed { replies.next() } else { None };
        let stored = if config.meta.is_empty() { None } else { replies.next() };
        let has_meta = stored.as_ref().and_then(|stored| match stored {
            Value::ServerError(_) => None,
            stored => Some(*stored != Value::Nil),
        });
        // Empty if the ACL does not permit INFO.
        let info = redis::from_redis_value::<String>(replies.next().unwrap_or_default());
        let info = info.unwrap_or_default();
        self.require_all_slots(connection, &info).await?;
        self.check_probe(probe_reply)?;
        let run_id = info_field(&info, "run_id");
        // Before the connection accepts script calls.
        if let Some(sign) = self.loss_detector.compare(meta_before, run_id, has_meta) {
            self.context.record_loss(&self.address, sign);
        }
        if let Some(stored) = stored {
            self.compare_meta(connection, &meta_key, stored).await;
        }
        self.check_eviction(replies.next().unwrap_or_default());
        Ok(())
    }

    /// Returns a take of one hit from a probe counter, by the script that decides calls. It shows what
    /// a read cannot: missing permissions, a replica, full memory. `None` if the client does not call
    /// that script, and on a cluster for a node that is not known to own a hash slot.
    fn probe_take(&self) -> Option<Cmd> {
        let ClientContext { config, scripts, .. } = &*self.context;
        let script = scripts.iter().find(|script| script.name == DECIDE)?;
        let key = match config.topology {
            TopologyConfig::Single | TopologyConfig::Sentinel { .. } => config.prefix.probe_key(),
            TopologyConfig::Cluster => config.prefix.probe_key_in(self.stats.owned_slot()?),
        };
        Some(encode_probe(script, &key))
    }

    /// Returns an error if the reply to the probe is one. A redirect is none: the slot has moved.
    ///
    /// A server that has become full, or cannot save, is kept: it still rejects calls.
    fn check_probe(&self, reply: Option<Value>) -> Result<(), ConnectError> {
        let Some(Value::ServerError(error)) = &reply else { return Ok(()) };
        let ErrorReply::Failed(SendError { kind, .. }) = ErrorReply::classify(error, &self.address)
        else {
            return Ok(());
        };
        let still_rejects = matches!(
            kind,
            FailureKind::OutOfMemory | FailureKind::Unsaved | FailureKind::NoReplicas
        );
        if still_rejects && self.stats.connects.get() > 0 {
            self.stats.record_error(kind);
            self.context.log_failure(
                &self.address,
                kind,
                &reply_text(error.code(), error.details()),
            );
            return Ok(());
        }
        Err(ConnectError { kind, reason: reply_text(error.code(), error.details()) })
    }

    /// Returns an error if the configured topology is a single server, but the server is one of
    /// several masters of a cluster. Such a server would redirect the calls for most keys. Does
    /// nothing if the ACL does not permit INFO or CLUSTER INFO.
    async fn require_all_slots(
        &self,
        connection: &mut MultiplexedConnection,
        info: &str,
    ) -> Result<(), ConnectError> {
        let is_single = matches!(self.context.config.topology, TopologyConfig::Single);
        if !is_single || info_field(info, "redis_mode") != Some("cluster") {
            return Ok(());
        }
        let reply = connection.req_packed_command(redis::cmd("CLUSTER").arg("INFO")).await?;
        let info = redis::from_redis_value::<String>(reply).unwrap_or_default();
        let masters = info_field(&info, "cluster_size").and_then(|size| size.parse::<u32>().ok());
        match masters.is_some_and(|masters| masters > 1) {
            true => Err(ConnectError::failed("the server holds only a part of the keys")),
            false => Ok(()),
        }
    }

    /// Logs a warning if Redis may evict keys, because an evicted counter silently resets its
    /// limit. Does nothing if the ACL does not permit INFO.
    fn check_eviction(&self, memory: Value) {
        let Ok(memory) = redis::from_redis_value::<String>(memory) else { return };
        let may_evict = NodeInfo::parse(&memory, self.context.config.db).may_evict();
        let known = self.stats.may_evict.swap(u64::from(may_evict));
        if may_evict && known == 0 {
            let node = &self.address;
            tracing::warn!(%node, "Redis may evict counters: set maxmemory-policy noeviction");
        }
    }

    /// Compares `stored`, the value of the key `tg1meta`, with `config.meta`, and overwrites the
    /// key with `config.meta`. Logs a warning if the values differ, because replicas with different
    /// key formats or key secrets do not share counters. Does nothing after an error reply, because
    /// on a cluster only one node holds the key.
    async fn compare_meta(&self, connection: &mut MultiplexedConnection, key: &str, stored: Value) {
        let meta = &self.context.config.meta;
        match stored {
            Value::ServerError(_) => return,
            Value::BulkString(stored) if stored != meta.as_bytes() => {
                self.stats.meta_mismatches.add(1);
                let node = &self.address;
                if let Some(suppressed) = self.context.log_limiter.admit("other key secret", node) {
                    tracing::warn!(
                        %node, suppressed,
                        "another replica uses a different key secret or format: counters are not shared"
                    );
                }
            }
            _ => {}
        }
        let mut store = redis::cmd("SET");
        store.arg(key).arg(meta).arg("EX").arg(META_EXPIRY_S);
        // SET fails on a full or read-only server. Then nothing is compared.
        if matches!(connection.req_packed_command(&store).await, Ok(Value::Okay)) {
            self.loss_detector.record_meta_key();
        }
    }
}

/// Reason why a connection cannot be used if ROLE says so.
pub(super) const IS_REPLICA: &str = "the server is a replica, not a master";

/// Returns an error unless the reply to ROLE says that the server is a master.
fn require_master(role: Option<Value>) -> Result<(), ConnectError> {
    match role {
        Some(Value::ServerError(error)) => Err(RedisError::from(error).into()),
        Some(Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(ConnectError { kind: FailureKind::ReadOnly, reason: IS_REPLICA.to_owned() }),
        },
        _ => Err(ConnectError::failed("no reply to ROLE")),
    }
}
