//! Opens the connections of a node for script calls: connects, logs in, loads the scripts, and checks
//! the server.
//!
//! Not here: sending script calls (`connection`), finding nodes (`sentinel`, `slot_refresh`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};

use super::backoff::Backoff;
use super::client_context::{ClientContext, ConnectError, login_parameters, read_password};
use super::config::{Password, TopologyConfig};
use super::error_reply::{ErrorReply, IS_REPLICA, reply_text};
use super::info::NodeInfo;
use super::misconfiguration::info_field;
use super::node_state::{ConnectionStatus, NodeState};
use super::send_error::SendError;
use crate::domain::FailureKind;
use crate::store::redis::script::call::encode_probe;
use crate::store::redis::script::library::DECIDE;

/// Time to live of the key `tg1meta` in seconds, renewed by every connection. One week, so that
/// replicas with different key secrets are detected even if they connect several days apart.
const META_EXPIRY_S: u64 = 7 * 24 * 3600;
/// Name of Tidegate's connections, as shown by CLIENT LIST.
const CLIENT_NAME: &str = "tidegate";

/// Dialer that opens the connections of one [`Connection`](super::connection_state::Connection) task.
pub(crate) struct Dialer {
    pub(super) node: Arc<NodeState>,
    /// Password of the last login.
    pub(super) password: Option<String>,
    pub(super) status: Arc<ConnectionStatus>,
}

impl Dialer {
    /// Tries to connect until an attempt succeeds, and waits before each attempt for as long as
    /// `backoff` requires. Returns the connection.
    pub(super) async fn dial(&mut self, backoff: &mut Backoff) -> MultiplexedConnection {
        loop {
            if let Some(wait) = backoff.next_wait() {
                tokio::time::sleep(wait).await;
            }
            let ConnectError { kind, reason } = match self.connect().await {
                Ok(connection) => return connection,
                Err(error) => error,
            };
            let NodeState { context, address, stats, .. } = &*self.node;
            stats.is_refusing.swap(u64::from(kind.is_error_reply()));
            stats.record_error(kind);
            stats.connect_failures.add(1);
            if backoff.record_failure(kind) {
                context.log_failure(address, kind, &reason);
            } else {
                context.set_failure(address, kind, &reason, None);
            }
            self.node.record_connect_failure();
            self.node.refresh_needed.notify_one();
        }
    }

    /// Opens a connection: logs in, loads every script and, with sentinels, checks that the server
    /// is a master.
    async fn connect(&mut self) -> Result<MultiplexedConnection, ConnectError> {
        // An earlier connection may have broken after it was given up.
        self.status.is_broken.store(false, Ordering::Release);
        let NodeState { context, address, .. } = &*self.node;
        let config = &context.config;
        self.password = read_password(&config.auth)?;
        let login = login_parameters(&config.auth, self.password.as_deref(), config.db);
        let mut connection = context.connect(address, login, self.connection_config()).await?;
        self.handshake(&mut connection).await?;
        Ok(connection)
    }

    /// Returns whether the password can change while a connection is open.
    pub(super) fn can_log_in_again(&self) -> bool {
        matches!(self.node.context.config.auth.password, Password::Reloaded(_))
    }

    /// Logs in again over an open connection if the password has changed, so that no connection
    /// outlives its password: a token of a cloud provider ends after minutes or hours, and then the
    /// server closes the connection. Nobody waits for the reply. If the server rejects the new
    /// password, the connection stays logged in, and the error is logged.
    pub(super) fn log_in_again(&mut self, connection: &MultiplexedConnection) {
        let auth = &self.node.context.config.auth;
        // A password that cannot be read is logged by its reader.
        let Ok(Some(password)) = read_password(auth) else { return };
        if self.password.as_ref() == Some(&password) {
            return;
        }
        let mut command = redis::cmd("AUTH");
        command.arg(&auth.user).arg(&password);
        self.password = Some(password);
        let (node, mut connection) = (Arc::clone(&self.node), connection.clone());
        tokio::spawn(async move {
            if let Ok(Value::ServerError(error)) = connection.req_packed_command(&command).await {
                let ConnectError { kind, reason } = RedisError::from(error).into();
                node.context.log_failure(&node.address, kind, &reason);
            }
        });
    }

    /// Returns the configuration of a connection: its reply timeout, and the callback for when it
    /// breaks.
    fn connection_config(&self) -> AsyncConnectionConfig {
        let status = Arc::clone(&self.status);
        let notify = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                status.is_broken.store(true, Ordering::Release);
                status.signal.notify_one();
            }
            Ok::<(), std::convert::Infallible>(())
        };
        AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.node.context.config.reply_timeout))
            .set_push_sender(notify)
    }

    async fn handshake(&self, connection: &mut MultiplexedConnection) -> Result<(), ConnectError> {
        let NodeState { context, address, loss_detector, .. } = &*self.node;
        let config = &context.config;
        let checks_role = matches!(config.topology, TopologyConfig::Sentinel { .. });
        let meta_key = config.prefix.meta_key();
        let mut commands = Pipeline::new();
        commands.cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME);
        for script in &context.scripts {
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
        let meta_before = loss_detector.known_meta();
        let replies = connection.req_packed_commands(&commands, 0, commands.len()).await?;
        let mut replies = replies.into_iter();
        // The client name only helps operators, so an error is ignored.
        let _ = replies.next();
        for reply in replies.by_ref().take(context.scripts.len()) {
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
        if let Some(sign) = loss_detector.compare(meta_before, run_id, has_meta) {
            context.record_loss(address, sign);
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
        let ClientContext { config, scripts, .. } = &*self.node.context;
        let script = scripts.iter().find(|script| script.name == DECIDE)?;
        let key = match config.topology {
            TopologyConfig::Single | TopologyConfig::Sentinel { .. } => config.prefix.probe_key(),
            TopologyConfig::Cluster => config.prefix.probe_key_in(self.node.stats.owned_slot()?),
        };
        Some(encode_probe(script, &key))
    }

    /// Returns an error if the reply to the probe is one. A redirect is none: the slot has moved.
    ///
    /// A server that has become full, or cannot save, is kept: it still rejects calls.
    fn check_probe(&self, reply: Option<Value>) -> Result<(), ConnectError> {
        let Some(Value::ServerError(error)) = &reply else { return Ok(()) };
        let NodeState { context, address, stats, .. } = &*self.node;
        let ErrorReply::Failed(SendError { kind, .. }) = ErrorReply::classify(error, address)
        else {
            return Ok(());
        };
        let reason = reply_text(error.code(), error.details());
        let still_rejects = matches!(
            kind,
            FailureKind::OutOfMemory | FailureKind::Unsaved | FailureKind::NoReplicas
        );
        if still_rejects && stats.connects.get() > 0 {
            stats.record_error(kind);
            context.log_failure(address, kind, &reason);
            return Ok(());
        }
        Err(ConnectError { kind, reason })
    }

    /// Returns an error if the configured topology is a single server, but the server is one of
    /// several masters of a cluster. Such a server would redirect the calls for most keys. Does
    /// nothing if the ACL does not permit INFO or CLUSTER INFO.
    async fn require_all_slots(
        &self,
        connection: &mut MultiplexedConnection,
        info: &str,
    ) -> Result<(), ConnectError> {
        let is_single = matches!(self.node.context.config.topology, TopologyConfig::Single);
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
        let NodeState { context, address: node, stats, .. } = &*self.node;
        let may_evict = NodeInfo::parse(&memory, context.config.db).may_evict();
        let known = stats.may_evict.swap(u64::from(may_evict));
        if may_evict && known == 0 {
            tracing::warn!(%node, "Redis may evict counters: set maxmemory-policy noeviction");
        }
    }

    /// Compares `stored`, the value of the key `tg1meta`, with `config.meta`, and overwrites the
    /// key with `config.meta`. Logs a warning if the values differ, because replicas with different
    /// key formats or key secrets do not share counters. Does nothing after an error reply, because
    /// on a cluster only one node holds the key.
    async fn compare_meta(&self, connection: &mut MultiplexedConnection, key: &str, stored: Value) {
        let NodeState { context, address: node, stats, loss_detector, .. } = &*self.node;
        let meta = &context.config.meta;
        match stored {
            Value::ServerError(_) => return,
            Value::BulkString(stored) if stored != meta.as_bytes() => {
                stats.meta_mismatches.add(1);
                if let Some(suppressed) = context.log_limiter.admit("other key secret", node) {
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
            loss_detector.record_meta_key();
        }
    }
}

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
