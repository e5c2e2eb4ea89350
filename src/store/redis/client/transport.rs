//! Trait through which the store sends script calls to Redis.
//!
//! Not here: the implementation ([`RedisClient`](super::topology::RedisClient)), encoding calls and
//! decoding replies (`script`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::Value;
use smallvec::SmallVec;

use super::cluster::Cluster;
use super::pending_command::PendingReply;
pub use super::reply_slot::CallReply;
use super::reply_slot::{CommandReply, ReplySender, reply_slot};
use super::send_error::SendError;
use crate::domain::FailureKind;
use crate::store::redis::script::call::NodeRequest;
use crate::store::redis::script::library::ScriptCall;

/// Requests that are sent together. Usually there is only one, which is stored in place.
pub type NodeRequests = SmallVec<[NodeRequest; 1]>;

/// Request that was queued: a future that resolves to its reply. It does not depend on whether it is
/// polled: the request is sent, and a task may receive the reply of a caller that has left.
pub struct PendingCall(PendingState);

enum PendingState {
    Ready(Option<Result<CallReply, SendError>>),
    /// Waits for the connection. The cluster follows a redirect. Without a cluster, a redirect shows
    /// that the server is a cluster node, contrary to the settings.
    Queued(PendingReply, Option<Arc<Cluster>>),
    /// Waits for the reply after a redirect, or for a transport without connections of ours.
    Boxed(BoxFuture<'static, Result<CallReply, SendError>>),
}

/// Queued requests, in the order in which they were passed to the transport.
pub type PendingCalls = SmallVec<[PendingCall; 1]>;

impl PendingCall {
    pub(crate) fn new(reply: PendingReply, cluster: Option<Arc<Cluster>>) -> PendingCall {
        PendingCall(PendingState::Queued(reply, cluster))
    }

    /// Creates a future that has resolved.
    pub fn ready(reply: Result<CallReply, SendError>) -> PendingCall {
        PendingCall(PendingState::Ready(Some(reply)))
    }

    /// Creates a call that a transport of a test has queued.
    #[doc(hidden)]
    pub fn queued() -> (QueuedByTest, PendingCall) {
        let (sender, receiver) = reply_slot();
        (QueuedByTest(sender), PendingCall::new(PendingReply { receiver, tracker: None }, None))
    }

    /// Creates a future that resolves to the output of `reply`.
    pub fn boxed(
        reply: impl Future<Output = Result<Value, SendError>> + Send + 'static,
    ) -> PendingCall {
        PendingCall(PendingState::Boxed(Box::pin(reply.map(|reply| reply.map(CallReply::Script)))))
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
    pub fn stop_waiting(&mut self) -> bool {
        let PendingState::Queued(reply, _) = &mut self.0 else { return false };
        let is_abandoned = reply.stop_waiting();
        if is_abandoned {
            let error = SendError::not_executed(FailureKind::NotConnected);
            self.0 = PendingState::Ready(Some(Err(error)));
        }
        is_abandoned
    }
}

impl Future for PendingCall {
    type Output = Result<CallReply, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let PendingCall(state) = self.get_mut();
        if let PendingState::Queued(reply, cluster) = state {
            match ready!(Pin::new(reply).poll(context)) {
                CommandReply::Final(reply) => return Poll::Ready(reply),
                CommandReply::Redirect(redirect, call) => match cluster.take() {
                    Some(cluster) => {
                        let follow = async move { cluster.follow_redirects(redirect, *call).await };
                        *state = PendingState::Boxed(Box::pin(follow));
                    }
                    None => {
                        let kind = FailureKind::Moving;
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
        self.0.send(CommandReply::Final(reply.map(CallReply::Script)));
    }
}

/// Transport that sends calls to the servers that hold their keys.
pub trait Transport: Send + Sync + 'static {
    /// Returns whether the transport connects to a Redis Cluster. If so, the store splits calls by
    /// node or by hash slot, and sets the slot of every request.
    fn is_cluster(&self) -> bool;

    /// Queues requests for their nodes, without waiting. Requests to the same node are written in
    /// order. A request whose outcome is unknown is never sent twice. If the future of a request is
    /// dropped while the request is still queued, the request is not written.
    fn submit(&self, calls: NodeRequests) -> PendingCalls;

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

    /// Returns what is known of the latest failure of a server, if it is of this kind.
    fn failure(&self, _: FailureKind) -> Option<String> {
        None
    }

    /// Returns the number of connections lost so far.
    fn lost_connections(&self) -> u64 {
        0
    }
}
