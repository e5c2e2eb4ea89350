//! Opens connections to Redis: connects, logs in, and loads the scripts.
//!
//! Not here: sending script calls (`connection`), finding nodes (`sentinel`, `slot_refresh`).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::{Connection, Manager, Pool, PoolError, Runtime};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    ServerErrorKind, Value,
};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::client_tls::RedisTlsConnector;
use super::config::{Address, Auth, Password, RedisConfig, RedisConfigError, TopologyConfig};
use super::info::NodeInfo;
use super::loss_detector::{self, LossCount, LossDetector, ServerReplies};
use super::misconfiguration::{find_advice, has_several_masters, server_mode};
use super::node_stats::NodeStats;
use crate::domain::LogLimiter;
use crate::store::redis::script::library::Script;

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

/// Configuration, scripts, and certificates shared by all connections of a client.
#[derive(Debug)]
pub(crate) struct ClientContext {
    pub(crate) config: RedisConfig,
    scripts: Vec<&'static Script>,
    tls: Option<RedisTlsConnector>,
    pub(crate) log_limiter: LogLimiter,
    pub(crate) losses: Arc<LossCount>,
    /// Number of connections to any node that were lost since the client was opened.
    pub(crate) lost_connections: AtomicU64,
    /// Latest logged reason why a node could not be used; `None` if no reason was logged.
    failure: Mutex<Option<String>>,
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
        let (losses, lost_connections, failure) = Default::default();
        Ok(ClientContext { config, scripts, tls, log_limiter, losses, lost_connections, failure })
    }

    /// Stores the reason why a node cannot be used, for [`failure`](Self::failure) to return.
    pub(crate) fn set_failure(&self, node: &Address, reason: &str, advice: Option<&str>) {
        let text = match advice {
            Some(advice) => format!("{node}: {reason}; {advice}"),
            None => format!("{node}: {reason}"),
        };
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// Returns the latest logged reason why a node could not be used; `None` if there was none.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts and logs a possible loss of counters on the server at `node`.
    pub(crate) fn record_loss(&self, node: &Address, reason: &'static str) {
        self.losses.record();
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
        let login = login_parameters(auth, read_password(auth)?.as_deref(), 0);
        let limit = Some(self.config.connect_timeout);
        let timeouts =
            AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        let mut connection = match self.tls_target(address) {
            Some(target) => self.connect_over_tls(target, &login, timeouts).await?,
            None => {
                let client = Client::open(connection_info(address, login)?)?;
                client.get_multiplexed_async_connection_with_config(&timeouts).await?
            }
        };
        match connection.req_packed_command(command).await? {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    /// Returns the TLS configuration, host, and port for a connection to `address`. Returns `None`
    /// if the connection does not use TLS, which includes every Unix socket.
    fn tls_target<'a>(
        &'a self,
        address: &'a Address,
    ) -> Option<(&'a RedisTlsConnector, &'a str, u16)> {
        match (&self.tls, address) {
            (Some(tls), Address::Tcp(host, port)) => Some((tls, host, *port)),
            (None, _) | (_, Address::Unix(_)) => None,
        }
    }

    /// Opens a TLS connection and logs in, within the connect timeout.
    async fn connect_over_tls(
        &self,
        (tls, host, port): (&RedisTlsConnector, &str, u16),
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let connect = async {
            let socket = TcpStream::connect((host, port)).await?;
            socket.set_nodelay(true)?;
            SockRef::from(&socket).set_tcp_keepalive(&keepalive())?;
            SockRef::from(&socket).set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))?;
            let stream = tls.handshake(host, socket).await?;
            MultiplexedConnection::new_with_config(login, stream, config).await
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

/// Returns the login parameters of a connection.
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
fn read_password(auth: &Auth) -> Result<Option<String>, RedisError> {
    match &auth.password {
        Password::None => Ok(None),
        Password::Fixed(password) => Ok(Some(password.clone())),
        Password::Reloaded(read) => read().map(Some).ok_or_else(|| {
            (redis::ErrorKind::AuthenticationFailed, "the password cannot be read").into()
        }),
    }
}

/// Error while opening a connection.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// The server is a replica, not a master.
    IsReplica,
    /// The server requires a password, and none is set.
    PasswordRequired,
    /// The server denied the login or a command. Only an operator can fix this.
    Denied(String),
    /// Connecting failed for a reason that may be temporary, so a retry may help.
    Failed(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectError::IsReplica => "the server is a replica, not a master",
            // The server's own text is about HELLO, which no operator has sent.
            ConnectError::PasswordRequired => "NOAUTH: authentication required",
            ConnectError::Denied(reason) | ConnectError::Failed(reason) => reason,
        })
    }
}

impl ConnectError {
    /// Returns whether the server denied the login or a command, or requires a password.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            ConnectError::PasswordRequired | ConnectError::Denied(_) => true,
            ConnectError::IsReplica | ConnectError::Failed(_) => false,
        }
    }
}

impl From<RedisError> for ConnectError {
    fn from(error: RedisError) -> Self {
        if error.code() == Some("NOAUTH") {
            return ConnectError::PasswordRequired;
        }
        let denied = matches!(
            error.kind(),
            redis::ErrorKind::AuthenticationFailed
                | redis::ErrorKind::Server(ServerErrorKind::NoPerm)
        ) || error.code() == Some("WRONGPASS");
        let mut text = error.to_string();
        if error.kind() == redis::ErrorKind::Parse {
            text = "the answer is not in the protocol of Redis".to_owned();
        }
        // The code of an error reply is quoted.
        if text.starts_with('"') {
            text = text.replacen('"', "", 2);
        }
        // A certificate's names are shown as Rust values: DnsName("redis.example").
        text = text.replace("DnsName(\"", "").replace("\")", "");
        // An unknown command is answered with its arguments, which may be a whole script.
        text.truncate(text.find(", with args beginning with").unwrap_or(text.len()));
        if denied { ConnectError::Denied(text) } else { ConnectError::Failed(text) }
    }
}

/// Dialer that opens the connections of one [`Connection`](super::connection_state::Connection) task.
///
/// Each dialer has a pool of one connection. With a shared pool, a broken connection could not be
/// identified, because the callback for broken connections is part of the pool's configuration.
///
/// INFO and CLUSTER queries do not use a pool: before each reuse, a pool sends UNWATCH, which the
/// ACL in the documentation does not permit and sentinels do not support.
pub(crate) struct Dialer {
    context: Arc<ClientContext>,
    address: Address,
    pool: Option<SingleConnectionPool>,
    stats: Arc<NodeStats>,
    signal: Arc<ConnectionSignal>,
    loss_detector: Arc<LossDetector>,
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

/// Pool of one connection, and the password with which it logs in.
struct SingleConnectionPool {
    pool: Pool,
    password: Option<String>,
}

impl Dialer {
    pub(crate) fn new(
        context: Arc<ClientContext>,
        address: Address,
        stats: Arc<NodeStats>,
        signal: Arc<ConnectionSignal>,
        loss_detector: Arc<LossDetector>,
    ) -> Dialer {
        Dialer { context, address, pool: None, stats, signal, loss_detector }
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.context.config
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Counts a lost connection.
    pub(crate) fn record_lost_connection(&self) {
        self.context.lost_connections.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn log_limiter(&self) -> &LogLimiter {
        &self.context.log_limiter
    }

    /// Logs a failed connection attempt, at most once a minute per node. A separate task looks for
    /// the cause and writes the log line, so that the next attempt is not delayed.
    pub(crate) fn log_failure(&self, error: ConnectError) {
        let Some(suppressed) = self.log_limiter().admit("connect failure", &self.address) else {
            return;
        };
        let (context, node) = (Arc::clone(&self.context), self.address.clone());
        tokio::spawn(async move {
            let reason = error.to_string();
            let advice = find_advice(&context, &node, &context.config.auth, &reason).await;
            context.set_failure(&node, &reason, advice.as_deref());
            match error {
                ConnectError::IsReplica => {
                    tracing::warn!(%node, suppressed, "the Redis node is not a master");
                }
                ConnectError::PasswordRequired => {
                    tracing::error!(%node, advice, reason, suppressed, "Redis requires a password");
                }
                ConnectError::Denied(_) => {
                    tracing::error!(
                        %node, advice, reason, suppressed, "Redis denied our login or a command"
                    );
                }
                ConnectError::Failed(_) => {
                    tracing::warn!(%node, advice, reason, suppressed, "cannot connect to Redis");
                }
            }
        });
    }

    /// Opens a connection: logs in, loads every script and, with sentinels, checks that the server
    /// is a master. A connection without TLS is taken out of the pool, so that another can be
    /// opened while it is in use.
    pub(crate) async fn connect(&mut self) -> Result<MultiplexedConnection, ConnectError> {
        // An earlier connection may have broken after it was given up.
        self.signal.is_broken.store(false, Ordering::Release);
        let password = read_password(&self.context.config.auth)?;
        if let Some(target) = self.context.tls_target(&self.address) {
            let login = self.login_parameters(password.as_deref());
            let mut connection =
                self.context.connect_over_tls(target, &login, self.connection_config()).await?;
            self.handshake(&mut connection).await?;
            return Ok(connection);
        }
        let pool = match &self.pool {
            Some(held) if held.password == password => held.pool.clone(),
            Some(_) | None => {
                let pool = self.new_pool(password.as_deref())?;
                self.pool = Some(SingleConnectionPool { pool: pool.clone(), password });
                pool
            }
        };
        let mut connection = match pool.get().await {
            Ok(connection) => connection,
            Err(PoolError::Backend(error)) => return Err(error.into()),
            Err(other) => return Err(ConnectError::Failed(other.to_string())),
        };
        let handshake = self.handshake(&mut connection).await;
        let connection = Connection::take(connection);
        handshake.map(|()| connection)
    }

    fn login_parameters(&self, password: Option<&str>) -> RedisConnectionInfo {
        let config = &self.context.config;
        login_parameters(&config.auth, password, config.db)
    }

    /// Returns the configuration of a connection: its timeouts, and the callback for when it
    /// breaks.
    fn connection_config(&self) -> AsyncConnectionConfig {
        let config = &self.context.config;
        let signal = Arc::clone(&self.signal);
        let notify = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                signal.set_broken();
            }
            Ok::<(), std::convert::Infallible>(())
        };
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.reply_timeout))
            .set_push_sender(notify)
    }

    fn new_pool(&self, password: Option<&str>) -> Result<Pool, ConnectError> {
        let config = &self.context.config;
        let info = connection_info(&self.address, self.login_parameters(password))?;
        let manager = Manager::new_with_config(info, self.connection_config())?;
        Pool::builder(manager)
            .max_size(1)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(config.connect_timeout))
            .create_timeout(Some(config.connect_timeout))
            .build()
            .map_err(|error| ConnectError::Failed(error.to_string()))
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
        let stored = if config.meta.is_empty() { None } else { replies.next() };
        let has_meta = stored.as_ref().and_then(|stored| match stored {
            Value::ServerError(_) => None,
            stored => Some(*stored != Value::Nil),
        });
        let info = replies.next().unwrap_or_default();
        self.require_all_slots(connection, &info).await?;
        let info = redis::from_redis_value::<String>(info).ok();
        let run_id = info.as_deref().and_then(loss_detector::run_id);
        // Before the connection accepts script calls.
        if let Some(sign) =
            self.loss_detector.compare(meta_before, ServerReplies { run_id, has_meta })
        {
            self.context.record_loss(&self.address, sign.as_str());
        }
        if let Some(stored) = stored {
            self.compare_meta(connection, &meta_key, stored).await;
        }
        self.check_eviction(replies.next().unwrap_or_default());
        Ok(())
    }

    /// Returns an error if the configured topology is a single server, but the server is one of
    /// several masters of a cluster. Such a server would redirect the calls for most keys. Does
    /// nothing if the ACL does not permit INFO or CLUSTER INFO.
    async fn require_all_slots(
        &self,
        connection: &mut MultiplexedConnection,
        info: &Value,
    ) -> Result<(), ConnectError> {
        let is_single = matches!(self.context.config.topology, TopologyConfig::Single);
        if !is_single || server_mode(info.clone()).as_deref() != Some("cluster") {
            return Ok(());
        }
        let reply = connection.req_packed_command(redis::cmd("CLUSTER").arg("INFO")).await?;
        match has_several_masters(reply) {
            true => Err(ConnectError::Failed("the server holds only a part of the keys".into())),
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
                if let Some(suppressed) = self.log_limiter().admit("other key secret", node) {
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

/// Returns an error unless the reply to ROLE says that the server is a master.
fn require_master(role: Option<Value>) -> Result<(), ConnectError> {
    match role {
        Some(Value::ServerError(error)) => Err(RedisError::from(error).into()),
        Some(Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(ConnectError::IsReplica),
        },
        _ => Err(ConnectError::Failed("no reply to ROLE".into())),
    }
}
