//! Opens connections: address, login, and the handshake that makes a connection ready to
//! carry items.
//!
//! Not here: what is sent afterwards (`connection`), which nodes there are (`sentinel`, `cluster`).

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{Connection, Manager, Pool, PoolError, Runtime};
use redis::aio::ConnectionLike;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    ServerErrorKind, Value,
};
use tokio::sync::Notify;

use super::client_tls::TlsClient;
use super::config::{Address, Auth, Password, RedisConfig, RedisConfigError, TopologyConfig};
use super::info::NodeInfo;
use super::node_stats::NodeStats;
use crate::store::redis::script::library::Script;

/// A silent peer is asked after 5 s, then every second, and is gone after the third question.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 3;
/// Unacknowledged bytes end a connection after as long as an unanswered keepalive would.
const USER_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the fingerprint outlives the last replica that connected. Replicas with different
/// secrets meet within hours of a rollout; a week survives a quiet weekend.
const META_EXPIRY_S: u64 = 7 * 24 * 3600;
/// What CLIENT LIST shows.
const CLIENT_NAME: &str = "tidegate";

/// What every dial of a process shares.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: RedisConfig,
    scripts: Vec<&'static Script>,
    tls: Option<TlsClient>,
}

impl Context {
    /// Parses what can be wrong about a configuration.
    pub(crate) fn new(
        config: RedisConfig,
        scripts: Vec<&'static Script>,
    ) -> Result<Context, RedisConfigError> {
        if config.addresses.is_empty() {
            return Err(RedisConfigError::NoAddress);
        }
        let secured = |tls| TlsClient::new(tls, config.tls_again.clone());
        let tls = config.tls.as_ref().map(secured).transpose()?;
        Ok(Context { config, scripts, tls })
    }

    /// One question on a connection of its own; for topologies, never for items.
    ///
    /// # Errors
    ///
    /// Whatever kept it from being answered within the connect timeout.
    pub(crate) async fn ask(
        &self,
        address: &Address,
        auth: &Auth,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        self.tls.as_ref().map(TlsClient::refresh);
        let info = self.info(address, auth, password(auth)?.as_deref(), 0)?;
        let limit = Some(self.config.connect_timeout);
        let timeouts =
            AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        let client = Client::open(info)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&timeouts).await?;
        match connection.req_packed_command(command).await? {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    fn info(
        &self,
        address: &Address,
        auth: &Auth,
        password: Option<&str>,
        db: i64,
    ) -> Result<ConnectionInfo, RedisError> {
        // RESP3, because only there does the library say at once that a connection broke.
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
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(USER_TIMEOUT);
        let info = self.place(address).into_connection_info()?;
        Ok(info.set_redis_settings(login).set_tcp_settings(tcp))
    }

    fn place(&self, address: &Address) -> ConnectionAddr {
        let secured = self.tls.as_ref().and_then(|tls| tls.place(address));
        secured.unwrap_or_else(|| match address {
            Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
            Address::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
        })
    }
}

fn password(auth: &Auth) -> Result<Option<String>, RedisError> {
    match &auth.password {
        Password::None => Ok(None),
        Password::Fixed(password) => Ok(Some(password.clone())),
        Password::Asked(ask) => match ask() {
            Some(password) => Ok(Some(password)),
            None => {
                Err((redis::ErrorKind::AuthenticationFailed, "the password is not there").into())
            }
        },
    }
}

/// Why a dial failed.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The server is there and is not a master.
    NotMaster,
    /// The server refused us; only an operator can help.
    Denied(String),
    /// Anything else; it may pass.
    Failed(String),
}

impl From<RedisError> for DialError {
    fn from(error: RedisError) -> Self {
        let denied = matches!(
            error.kind(),
            redis::ErrorKind::AuthenticationFailed
                | redis::ErrorKind::Server(ServerErrorKind::NoPerm)
        ) || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
        if denied {
            DialError::Denied(error.to_string())
        } else {
            DialError::Failed(error.to_string())
        }
    }
}

/// Dials one connection's connections, one after another.
///
/// The lease comes from a pool of one, which is the connection's own: the notice that a connection broke
/// belongs to the pool's configuration, and a connection wants only its own.
pub(crate) struct Dialer {
    context: Arc<Context>,
    address: Address,
    /// The pool, the password that it logs in with, and which certificates it shows.
    pool: Option<(Option<String>, u64, Pool)>,
    counters: Arc<NodeStats>,
    /// Told when a connection of this dialer breaks.
    pub(crate) broken: Arc<Notify>,
}

impl Dialer {
    pub(crate) fn new(context: Arc<Context>, address: Address, counters: Arc<NodeStats>) -> Dialer {
        Dialer { context, address, pool: None, counters, broken: Arc::new(Notify::new()) }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// A connection that has logged in, has every script loaded and, where sentinels are asked,
    /// leads to a master.
    pub(crate) async fn dial(&mut self) -> Result<Connection, DialError> {
        let password = password(&self.context.config.auth)?;
        let certificates = self.context.tls.as_ref().map_or(0, TlsClient::refresh);
        let pool = match &self.pool {
            Some((held, of, pool)) if *held == password && *of == certificates => pool.clone(),
            _ => {
                let pool = self.new_pool(password.as_deref())?;
                self.pool = Some((password, certificates, pool.clone()));
                pool
            }
        };
        let mut connection = match pool.get().await {
            Ok(connection) => connection,
            Err(PoolError::Backend(error)) => return Err(error.into()),
            Err(other) => return Err(DialError::Failed(other.to_string())),
        };
        match self.handshake(&mut connection).await {
            Ok(()) => Ok(connection),
            Err(error) => {
                drop(Connection::take(connection));
                Err(error)
            }
        }
    }

    fn new_pool(&self, password: Option<&str>) -> Result<Pool, DialError> {
        let config = &self.context.config;
        let info = self.context.info(&self.address, &config.auth, password, config.db)?;
        let broken = Arc::clone(&self.broken);
        let notice = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                broken.notify_one();
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let timeouts = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.overdue))
            .set_push_sender(notice);
        let manager = Manager::new_with_config(info, timeouts)?;
        Pool::builder(manager)
            .max_size(1)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(config.connect_timeout))
            .create_timeout(Some(config.connect_timeout))
            .build()
            .map_err(|error| DialError::Failed(error.to_string()))
    }

    async fn handshake(&self, connection: &mut Connection) -> Result<(), DialError> {
        let config = &self.context.config;
        let asks_role = matches!(config.topology, TopologyConfig::Sentinel { .. });
        let meta_key = config.prefix.meta();
        let mut hello = Pipeline::new();
        hello.cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME);
        for script in &self.context.scripts {
            hello.add_command(load(script));
        }
        if asks_role {
            hello.cmd("ROLE");
        }
        if !config.meta.is_empty() {
            hello.cmd("GET").arg(&meta_key);
        }
        hello.cmd("INFO").arg("memory");
        let replies = connection.req_packed_commands(&hello, 0, hello.len()).await?;
        let mut replies = replies.into_iter();
        // The name is a courtesy to operators: no reason to refuse a connection.
        let _ = replies.next();
        for reply in replies.by_ref().take(self.context.scripts.len()) {
            if let Value::ServerError(error) = reply {
                return Err(RedisError::from(error).into());
            }
        }
        if asks_role {
            require_master(replies.next())?;
        }
        if !config.meta.is_empty() {
            let held = replies.next().unwrap_or_default();
            self.compare_meta(connection, &meta_key, held).await;
        }
        self.look_for_eviction(replies.next().unwrap_or_default());
        Ok(())
    }

    /// A Redis that evicts forgets limits, and nothing else would show it. Where we may not ask,
    /// nobody is warned.
    fn look_for_eviction(&self, memory: Value) {
        let Ok(memory) = redis::from_redis_value::<String>(memory) else { return };
        let evicts = NodeInfo::of(&memory, self.context.config.db).may_evict();
        let known = self.counters.may_evict.swap(u64::from(evicts));
        if evicts && known == 0 {
            let node = &self.address;
            tracing::warn!(%node, "Redis may evict counters: set maxmemory-policy noeviction");
        }
    }

    /// Replicas with different secrets count the same caller under different keys, each its own
    /// full limit, and nothing else would show it. On a cluster only the owner of the key answers;
    /// the others' MOVED is passed over.
    async fn compare_meta(&self, connection: &mut Connection, key: &str, held: Value) {
        let meta = &self.context.config.meta;
        match held {
            Value::ServerError(_) => return,
            Value::BulkString(held) if held != meta.as_bytes() => {
                self.counters.meta_differs.add(1);
                tracing::warn!(
                    node = %self.address,
                    "another replica uses a different key secret or format: counters are not shared"
                );
            }
            _ => {}
        }
        let mut remember = redis::cmd("SET");
        remember.arg(key).arg(meta).arg("EX").arg(META_EXPIRY_S);
        // Lost on a full or read-only server: then nothing can be compared, and nothing is worse.
        let _ = connection.req_packed_command(&remember).await;
    }
}

/// `SCRIPT LOAD` of a script.
pub(crate) fn load(script: &Script) -> Cmd {
    let mut command = redis::cmd("SCRIPT");
    command.arg("LOAD").arg(&script.text);
    command
}

fn require_master(role: Option<Value>) -> Result<(), DialError> {
    match role {
        Some(Value::ServerError(error)) => Err(RedisError::from(error).into()),
        Some(Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(DialError::NotMaster),
        },
        _ => Err(DialError::Failed("ROLE was not answered".into())),
    }
}
