//! What all connections of a client share: configuration, scripts, certificates, and the failures of
//! the nodes. Opens connections and logs in.
//!
//! Not here: the handshake of connections for script calls (`dialer`), the cause of a failure
//! (`misconfiguration`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::{Connection, Manager, Pool, PoolError};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, Value,
};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::client_tls::RedisTlsConnector;
use super::config::{Address, Auth, Password, RedisConfig, RedisConfigError};
use super::error_reply::{failure_kind, reply_text};
use super::misconfiguration::find_advice;
use crate::domain::{FailureKind, Lock, LogLimiter};
use crate::store::redis::script::library::Script;

/// Idle time before the first TCP keepalive probe. After three unanswered probes, one second apart,
/// the connection is closed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 3;
/// TCP user timeout: the connection is closed if written data is not acknowledged for this long.
/// Equal to the time that the keepalive probes take to detect a dead peer.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(8);

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
    pub(super) scripts: Vec<&'static Script>,
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
    pub(super) async fn connect(
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

pub(super) fn login_parameters(
    auth: &Auth,
    password: Option<&str>,
    db: i64,
) -> RedisConnectionInfo {
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
