//! Trait through which the store sends script calls to Redis.
//!
//! Not here: the implementation ([`RedisClient`](super::topology::RedisClient)), encoding calls and
//! decoding replies (`script`).

use std::future::Future;
use std::time::Instant;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::plain_charge::{ChargeReplies, PlainCharges};
use crate::domain::{ExecutionStatus, Source};
use crate::store::redis::script::library::Script;

/// Returns the source of a reply: [`Source::Shed`] if the call was not sent because too many other
/// calls are waiting, and otherwise [`Source::Redis`].
pub(crate) fn reply_source(reply: Option<&Result<Value, SendError>>) -> Source {
    match reply {
        Some(Err(error)) if error.kind.is_overload() => Source::Shed,
        Some(_) | None => Source::Redis,
    }
}

/// Encoded call to a Lua script.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    /// Script to call. It is loaded again if the server replies NOSCRIPT.
    pub script: &'static Script,
    /// Encoded command: `EVALSHA <sha> <number of keys> <keys…> <arguments…>`.
    pub command: Cmd,
    /// Hash slot of the keys. `None` if Redis is not [a cluster](Transport::is_cluster), because
    /// computing the slot costs a checksum of the key.
    pub slot: Option<u16>,
    /// Time by which the caller needs the reply; `None` means no deadline. A connection that cannot
    /// deliver the reply in time rejects the call.
    pub deadline: Option<Instant>,
}

/// Script calls that are sent together. Usually there is only one call, which is stored without a
/// heap allocation.
pub type ScriptCalls = SmallVec<[ScriptCall; 1]>;

/// Replies to script calls, one per call and in the same order.
pub type Replies = SmallVec<[Result<Value, SendError>; 1]>;

/// Error of a script call or a plain charge, including whether the command may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError {
    /// Whether the command may have run. If so, a call that charges must not be sent again.
    pub executed: ExecutionStatus,
    /// Kind of error, for metrics and logs.
    pub kind: SendErrorKind,
}

impl SendError {
    /// Creates an error for a call whose script has not run.
    pub(crate) const fn not_executed(kind: SendErrorKind) -> SendError {
        SendError { executed: ExecutionStatus::NotExecuted, kind }
    }

    /// Error for a call that was written to a connection but never got a reply.
    pub(crate) const LOST: SendError =
        SendError { executed: ExecutionStatus::Unknown, kind: SendErrorKind::Lost };
}

/// Reason why a script call or a plain charge failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendErrorKind {
    /// No connection to the node is open, so the call was not sent.
    NotConnected,
    /// The queues of the node's connections are full.
    QueueFull,
    /// The node was not expected to reply before the caller's deadline.
    Overload,
    /// The connection has no valid bounds on the server's time, so plain charges were not sent.
    UnknownTime,
    /// The node's circuit breaker is open.
    BreakerOpen,
    /// The connection was lost or the call timed out after the call was written, so the script may
    /// have run.
    Lost,
    /// The cluster is being reconfigured: too many redirects, TRYAGAIN, CLUSTERDOWN, MASTERDOWN.
    Reconfiguring,
    /// The node is loading its data set, or is a replica (READONLY).
    LoadingOrReplica,
    /// The server is out of memory or cannot persist writes (OOM, MISCONF, NOREPLICAS).
    NotWritable,
    /// A slow script blocks the server (BUSY).
    Busy,
    /// Authentication failed, or the ACL denied the command (NOAUTH, WRONGPASS, NOPERM).
    Denied,
    /// The script failed, or the server sent any other error reply.
    Script,
}

impl SendErrorKind {
    /// Returns whether the call was rejected only because too many other calls are waiting.
    pub const fn is_overload(self) -> bool {
        matches!(self, SendErrorKind::QueueFull | SendErrorKind::Overload)
    }

    /// Returns whether the error suggests that the topology has changed, such as a master that has
    /// become a replica.
    pub(crate) const fn suggests_topology_change(self) -> bool {
        matches!(self, SendErrorKind::Reconfiguring | SendErrorKind::LoadingOrReplica)
    }

    /// Returns the name of the error in traces (`error.type`).
    pub const fn as_str(self) -> &'static str {
        match self {
            SendErrorKind::NotConnected => "not_connected",
            SendErrorKind::QueueFull => "queue_full",
            SendErrorKind::Overload => "overload",
            SendErrorKind::UnknownTime => "unknown_time",
            SendErrorKind::BreakerOpen => "open",
            SendErrorKind::Lost => "lost",
            SendErrorKind::Reconfiguring => "moving",
            SendErrorKind::LoadingOrReplica => "not_master",
            SendErrorKind::NotWritable => "not_writable",
            SendErrorKind::Busy => "busy",
            SendErrorKind::Denied => "denied",
            SendErrorKind::Script => "script",
        }
    }
}

/// Transport that sends script calls to the servers that hold their keys.
pub trait Transport: Send + Sync + 'static {
    /// Returns whether the transport connects to a Redis Cluster. If so, the store splits calls by
    /// hash slot, and sets the slot of every script call.
    fn is_cluster(&self) -> bool;

    /// Sends script calls to their nodes in parallel, and waits for all replies. Calls to the same
    /// node are written in order.
    ///
    /// A call whose outcome is unknown is never sent twice. If the future is dropped, calls that
    /// are still queued are not written.
    fn send(&self, calls: ScriptCalls) -> impl Future<Output = Replies> + Send;

    /// Sends script calls like [`send`](Self::send), but waits only until `deadline`, if there is
    /// one. Calls without a reply by then fail as [`Lost`](SendErrorKind::Lost), because their
    /// scripts may have run. A transport that is not a cluster may ignore the deadline, because the
    /// store sends it a single call, whose future the caller can drop.
    ///
    /// The default implementation reports every call as lost if any reply is missing at `deadline`.
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

    /// Returns whether counters can be charged with plain commands. If not,
    /// [`charge`](Self::charge) always returns `None`.
    fn can_charge(&self) -> bool {
        false
    }

    /// Charges counters with plain commands, without a script, and waits for the replies. May queue
    /// the commands before the future is polled. On a cluster, charges without a reply by `deadline` fail as [`Lost`](SendErrorKind::Lost).
    ///
    /// Sends nothing and returns `None` unless the server time of each node that owns one of the
    /// counters is known. A charge is sent at most once and never redirected to another node.
    fn charge(
        &self,
        charges: PlainCharges,
        deadline: Option<Instant>,
    ) -> impl Future<Output = Option<ChargeReplies>> + Send {
        let _ = (charges, deadline);
        async { None }
    }

    /// Sends a script call at most once, in the background, and discards its reply. Drops the call
    /// if no connection accepts it. Used for refunds: if a refund is lost, the counter is too high
    /// only until its window ends.
    fn send_in_background(&self, call: ScriptCall);

    /// Returns a numeric identifier of the node that owns a hash slot of a cluster. Returns `None`
    /// if the owner is unknown, if Redis is not a cluster, or if node scripts are not supported.
    fn node_of(&self, _slot: u16) -> Option<u16> {
        None
    }

    /// Returns the number of redirects (MOVED, ASK, TRYAGAIN) that script calls have received.
    fn redirects(&self) -> u64 {
        0
    }

    /// Returns the number of times that a server may have lost counters.
    fn counter_losses(&self) -> u64 {
        0
    }

    /// Returns the number of connections lost so far.
    fn lost_connections(&self) -> u64 {
        0
    }
}
