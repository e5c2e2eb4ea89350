//! The trait through which the store sends script calls to Redis.
//!
//! Not here: its implementation ([`RedisClient`](super::topology::RedisClient)), how calls are
//! encoded and replies decoded (`script`).

use std::future::Future;
use std::time::Instant;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::domain::ExecutionStatus;
use crate::store::redis::script::library::Script;

/// One script call, ready to be written.
///
/// A `redis::Cmd` keeps its arguments in one buffer; a connection packs many calls into one write.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    /// The script, to be loaded again if the server answers NOSCRIPT.
    pub script: &'static Script,
    /// The whole command: `EVALSHA <sha> <number of keys> <keys…> <arguments…>`.
    pub command: Cmd,
    /// The cluster slot of all its keys. `None` unless the transport
    /// [is a cluster](Transport::is_cluster), so that other calls do not pay for the checksum.
    pub slot: Option<u16>,
}

/// The script calls of one round. Most rounds have one, which needs no allocation.
pub type ScriptCalls = SmallVec<[ScriptCall; 1]>;

/// One reply per script call, in order.
pub type Replies = SmallVec<[Result<Value, SendError>; 1]>;

/// Why a script call has no reply, and whether it may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError {
    /// `No`: it did not run and may be sent again. `Unknown`: a call that charges must not be.
    pub executed: ExecutionStatus,
    /// What went wrong, for metrics and logs.
    pub kind: SendErrorKind,
}

impl SendError {
    /// The call did not run.
    pub(crate) const fn not_executed(kind: SendErrorKind) -> SendError {
        SendError { executed: ExecutionStatus::NotExecuted, kind }
    }

    /// The call was written and never answered.
    pub(crate) const LOST: SendError =
        SendError { executed: ExecutionStatus::Unknown, kind: SendErrorKind::Lost };
}

/// What went wrong with a script call that has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendErrorKind {
    /// There is no connection to the node.
    NotConnected,
    /// The queues of the node's connections are full.
    QueueFull,
    /// The node's circuit breaker is open.
    BreakerOpen,
    /// The connection was lost, or the reply did not arrive in time.
    Lost,
    /// The cluster is being reconfigured: too many redirections, TRYAGAIN, CLUSTERDOWN, MASTERDOWN.
    Moving,
    /// The node is loading its data set, or is a replica (READONLY).
    NotMaster,
    /// The server is out of memory or cannot persist writes (OOM, MISCONF, NOREPLICAS).
    NotWritable,
    /// A slow script blocks the server (BUSY).
    Busy,
    /// Authentication or the ACL failed (NOAUTH, WRONGPASS, NOPERM).
    Denied,
    /// The script failed, or any other error reply.
    Script,
}

impl SendErrorKind {
    /// Its name in traces (`error.type`).
    pub const fn as_str(self) -> &'static str {
        match self {
            SendErrorKind::NotConnected => "not_connected",
            SendErrorKind::QueueFull => "queue_full",
            SendErrorKind::BreakerOpen => "open",
            SendErrorKind::Lost => "lost",
            SendErrorKind::Moving => "moving",
            SendErrorKind::NotMaster => "not_master",
            SendErrorKind::NotWritable => "not_writable",
            SendErrorKind::Busy => "busy",
            SendErrorKind::Denied => "denied",
            SendErrorKind::Script => "script",
        }
    }
}

/// Sends script calls to the servers that hold their keys.
pub trait Transport: Send + Sync + 'static {
    /// Whether the keys of a call may lie on different nodes. If so, the store splits calls by
    /// slot and every script call names its slot.
    fn is_cluster(&self) -> bool;

    /// Sends script calls, to several nodes in parallel, and waits for every reply. Calls to one
    /// node are written in order.
    ///
    /// A call whose outcome is unknown is never sent twice. If the future is dropped, calls that
    /// were not written yet are not written any more.
    fn send(&self, calls: ScriptCalls) -> impl Future<Output = Replies> + Send;

    /// Like [`send`](Self::send), but a call without a reply at the deadline fails as
    /// [`Lost`](SendErrorKind::Lost), with an unknown outcome; replies that have arrived are kept.
    /// `None`: no deadline.
    fn send_until(
        &self,
        calls: ScriptCalls,
        deadline: Option<Instant>,
    ) -> impl Future<Output = Replies> + Send {
        async move {
            let (count, sent) = (calls.len(), self.send(calls));
            let Some(deadline) = deadline else { return sent.await };
            let in_time = tokio::time::timeout_at(deadline.into(), sent).await;
            in_time.unwrap_or_else(|_| (0..count).map(|_| Err(SendError::LOST)).collect())
        }
    }

    /// Sends a script call without waiting for its reply: at most once, in the background, dropped
    /// if the queue is full. For refunds: a lost one only makes a counter stricter for a while.
    fn post(&self, call: ScriptCall);
}
