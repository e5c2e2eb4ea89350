//! Trait through which the store sends script calls to Redis.
//!
//! Not here: the implementation ([`RedisClient`](super::topology::RedisClient)), encoding calls and
//! decoding replies (`script`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_util::future::BoxFuture;
use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::cluster::Cluster;
use super::pending_command::{CommandReply, PendingReply};
use super::plain_charge::{ChargeReplies, PendingCharges, PlainCharges};
use super::reply_slot::{ReplySender, reply_slot};
use super::shared_write::SharedCall;
use crate::domain::{ExecutionStatus, Source};
use crate::store::redis::script::library::Script;
use crate::store::redis::script::reply::ScriptReply;

/// Returns the source of a reply: [`Source::Shed`] if the call was not sent because too many other
/// calls are waiting, and otherwise [`Source::Redis`].
pub(crate) fn reply_source(reply: &Result<Value, SendError>) -> Source {
    match reply {
        Err(error) if error.kind.is_overload() => Source::Shed,
        Ok(_) | Err(_) => Source::Redis,
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
    pub const LOST: SendError =
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

/// Script call that was queued: a future that resolves to its reply. It does not depend on whether
/// it is polled: the call is sent, and a task may receive the reply of a caller that has left.
pub struct PendingScript(PendingState);

enum PendingState {
    Ready(Option<Result<Value, SendError>>),
    /// Waits for the connection. The cluster follows a redirect. Without a cluster, a redirect shows
    /// that the server is a cluster node, contrary to the settings.
    Queued(PendingReply, Option<Arc<Cluster>>),
    /// Waits for the reply after a redirect, or for a transport without connections of ours.
    Boxed(BoxFuture<'static, Result<Value, SendError>>),
}

/// Queued script calls, in the order in which they were passed to the transport.
pub type PendingScripts = SmallVec<[PendingScript; 1]>;

impl PendingScript {
    pub(crate) fn new(reply: PendingReply, cluster: Option<Arc<Cluster>>) -> PendingScript {
        PendingScript(PendingState::Queued(reply, cluster))
    }

    /// Creates a future that has resolved.
    pub fn ready(reply: Result<Value, SendError>) -> PendingScript {
        PendingScript(PendingState::Ready(Some(reply)))
    }

    /// Creates a call that a transport of a test has queued.
    #[doc(hidden)]
    pub fn queued() -> (QueuedByTest, PendingScript) {
        let (sender, receiver) = reply_slot();
        (QueuedByTest(sender), PendingScript::new(PendingReply { receiver, tracker: None }, None))
    }

    /// Creates a future that resolves to the output of `reply`.
    pub fn boxed(
        reply: impl Future<Output = Result<Value, SendError>> + Send + 'static,
    ) -> PendingScript {
        PendingScript(PendingState::Boxed(Box::pin(reply)))
    }

    /// Lets the call make progress, such as following a redirect, without taking its reply.
    pub(crate) fn advance(&mut self, context: &mut Context<'_>) {
        if !matches!(self.0, PendingState::Ready(_))
            && let Poll::Ready(reply) = Pin::new(&mut *self).poll(context)
        {
            self.0 = PendingState::Ready(Some(reply));
        }
    }

    /// Ends the caller's wait. Returns whether the call has not been sent and never will be. If not,
    /// the future still resolves to the reply.
    pub fn leave(&mut self) -> bool {
        let PendingState::Queued(reply, _) = &mut self.0 else { return false };
        let is_abandoned = reply.leave();
        if is_abandoned {
            let error = SendError::not_executed(SendErrorKind::NotConnected);
            self.0 = PendingState::Ready(Some(Err(error)));
        }
        is_abandoned
    }
}

impl Future for PendingScript {
    type Output = Result<Value, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let PendingScript(state) = self.get_mut();
        if let PendingState::Queued(reply, cluster) = state {
            match ready!(Pin::new(reply).poll(context)) {
                CommandReply::Value(value) => return Poll::Ready(Ok(value)),
                CommandReply::Failed(error) => return Poll::Ready(Err(error)),
                // Only plain charges and shared calls get such a reply.
                CommandReply::Charged(_) | CommandReply::Decided(_) => {
                    return Poll::Ready(Err(SendError::LOST));
                }
                CommandReply::Redirect(redirect, call) => match cluster.take() {
                    Some(cluster) => {
                        let follow = async move { cluster.follow_redirects(redirect, *call).await };
                        *state = PendingState::Boxed(Box::pin(follow));
                    }
                    None => {
                        let kind = SendErrorKind::Reconfiguring;
                        return Poll::Ready(Err(SendError::not_executed(kind)));
                    }
                },
            }
        }
        match state {
            PendingState::Ready(reply) => Poll::Ready(reply.take().unwrap_or(Err(SendError::LOST))),
            PendingState::Boxed(reply) => reply.as_mut().poll(context),
            PendingState::Queued(..) => Poll::Pending,
        }
    }
}

/// Call that was queued to share a script call: a future that resolves to its reply.
#[derive(Debug)]
pub struct PendingShared(PendingReply);

/// Reply to a call that can share a script call.
#[derive(Debug)]
pub enum SharedReply {
    /// The call shared a script call.
    Decided(ScriptReply),
    /// The call had a script call of its own, which returned this value.
    Alone(Value),
}

impl PendingShared {
    pub(crate) fn new(reply: PendingReply) -> PendingShared {
        PendingShared(reply)
    }

    /// Ends the caller's wait. Returns whether the call has not been sent and never will be. If not,
    /// the future still resolves to the reply.
    pub(crate) fn leave(&mut self) -> bool {
        self.0.leave()
    }
}

impl Future for PendingShared {
    type Output = Result<SharedReply, SendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll(context)) {
            CommandReply::Decided(reply) => Ok(SharedReply::Decided(reply)),
            CommandReply::Value(value) => Ok(SharedReply::Alone(value)),
            CommandReply::Failed(error) => Err(error),
            // The server is a cluster node, contrary to the settings.
            CommandReply::Redirect(..) => {
                Err(SendError::not_executed(SendErrorKind::Reconfiguring))
            }
            CommandReply::Charged(_) => Err(SendError::LOST),
        })
    }
}

/// Command that a transport of a test has queued.
#[doc(hidden)]
#[derive(Debug)]
pub struct QueuedByTest(pub(super) ReplySender);

impl QueuedByTest {
    /// Marks the command as written. Returns false if its caller has left.
    pub fn mark_written(&self) -> bool {
        self.0.mark_written()
    }

    /// Passes the reply to a script call.
    pub fn reply(self, reply: Result<Value, SendError>) {
        self.0.send(match reply {
            Ok(value) => CommandReply::Value(value),
            Err(error) => CommandReply::Failed(error),
        });
    }

    /// Passes the replies to plain charges.
    pub fn charged(self, replies: ChargeReplies) {
        self.0.send(CommandReply::Charged(replies));
    }
}

/// Transport that sends script calls to the servers that hold their keys.
pub trait Transport: Send + Sync + 'static {
    /// Returns whether the transport connects to a Redis Cluster. If so, the store splits calls by
    /// hash slot, and sets the slot of every script call.
    fn is_cluster(&self) -> bool;

    /// Queues script calls for their nodes, without waiting. Calls to the same node are written in
    /// order. A call whose outcome is unknown is never sent twice. If the future of a call is
    /// dropped while the call is still queued, the call is not written.
    fn submit(&self, calls: ScriptCalls) -> PendingScripts;

    /// Sends script calls to their nodes in parallel, and waits for all replies.
    fn send(&self, calls: ScriptCalls) -> impl Future<Output = Replies> + Send {
        let pending = self.submit(calls);
        async move {
            let mut replies = Replies::new();
            for reply in pending {
                replies.push(reply.await);
            }
            replies
        }
    }

    /// Returns whether the calls of one write share a script call. If not,
    /// [`submit_shared`](Self::submit_shared) always returns `None`.
    fn shares_writes(&self) -> bool {
        false
    }

    /// Queues a call that can share a script call with other calls, without waiting. Returns `None`
    /// if no server is known.
    fn submit_shared(&self, call: SharedCall, deadline: Option<Instant>) -> Option<PendingShared> {
        let _ = (call, deadline);
        None
    }

    /// Returns whether counters can be charged with plain commands. If not,
    /// [`charge`](Self::charge) always returns `None`.
    fn can_charge(&self) -> bool {
        false
    }

    /// Queues charges of counters with plain commands, without a script and without waiting. If a
    /// charge does not pass, the transport refunds all charges of the call that the same node has,
    /// before it passes the replies on.
    ///
    /// Queues nothing and returns `None` unless the server time of each node that owns one of the
    /// counters is known. A charge is sent at most once and never redirected to another node.
    fn charge(&self, charges: PlainCharges, deadline: Option<Instant>) -> Option<PendingCharges> {
        let _ = (charges, deadline);
        None
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
