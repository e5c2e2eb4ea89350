//! Commands queued for a connection or in flight, and the wait for their replies.
//!
//! Not here: the replies (`reply_slot`), writing commands and reading replies (`connection`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use redis::Cmd;
use smallvec::SmallVec;

use super::error_reply::Redirect;
use super::node_state::CallTracker;
use super::reply_slot::{CallReply, CommandReply, ReplyReceiver, ReplySender, reply_slot};
use super::send_error::SendError;
use crate::domain::{FailureKind, Micros};
use crate::store::redis::script::call::{NodeRequest, SharedCall};
use crate::store::redis::script::library::Script;

/// Maximum number of times that a command is resent after NOSCRIPT. If three attempts are not
/// enough, the server apparently loses its scripts as soon as they are loaded.
pub(super) const SCRIPT_RELOADS_MAX: u8 = 3;

/// Commands that one call sends to one node, queued together so that a single write contains all of
/// them.
pub(crate) type Batch = SmallVec<[PendingCommand; 1]>;

/// Command that waits in the queue of a connection.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) call: NodeRequest,
    /// Whether to send ASKING before the command.
    pub(crate) asking: bool,
    /// Number of times that the server replied NOSCRIPT. If above 0, SCRIPT LOAD is sent before
    /// the command.
    pub(crate) noscript_count: u8,
    pub(crate) queued_at: Micros,
    /// Time by which the caller needs the reply; `Micros(u64::MAX)` if there is no deadline.
    pub(crate) deadline: Micros,
    /// Destination of the reply; `None` if no caller waits for it.
    reply: Option<ReplySender>,
}

impl PendingCommand {
    pub(crate) fn new(call: NodeRequest, asking: bool) -> (PendingCommand, ReplyReceiver) {
        let (sender, receiver) = reply_slot();
        let reply = Some(sender);
        (PendingCommand { asking, reply, ..PendingCommand::without_reply(call) }, receiver)
    }

    /// Creates a command whose reply is discarded.
    pub(crate) fn without_reply(call: NodeRequest) -> PendingCommand {
        PendingCommand {
            call,
            asking: false,
            noscript_count: 0,
            queued_at: Micros::ZERO,
            deadline: Micros(u64::MAX),
            reply: None,
        }
    }

    /// Marks the command as written. Returns false if its caller has left, so that the command must
    /// not be written. A refund is always written.
    pub(crate) fn mark_written(&self) -> bool {
        let is_refund = self.script().is_some_and(Script::is_refund);
        self.reply.as_ref().is_none_or(|caller| caller.mark_written() || is_refund)
    }

    /// Returns the call if it can share a script call.
    pub(crate) fn shared(&self) -> Option<&SharedCall> {
        match &self.call {
            NodeRequest::Shared(shared) => Some(shared),
            NodeRequest::Script(_) => None,
        }
    }

    /// Replaces a call that can share a script call with a script call of its own.
    pub(crate) fn into_script_call(self) -> PendingCommand {
        PendingCommand { call: self.call.into_script_call().into(), ..self }
    }

    /// Returns the script of a script call of its own.
    fn script(&self) -> Option<&'static Script> {
        match &self.call {
            NodeRequest::Script(call) => Some(call.script),
            NodeRequest::Shared(_) => None,
        }
    }

    /// Returns the script if the server does not know it.
    pub(crate) fn script_to_load(&self) -> Option<&'static Script> {
        self.script().filter(|_| self.noscript_count > 0)
    }

    /// Rejects the command before it is written: the caller receives an error of this kind.
    pub(crate) fn reject(self, kind: FailureKind) {
        self.complete(Err(SendError::not_executed(kind)));
    }

    /// Sends the reply to the caller, if the caller is still waiting.
    pub(crate) fn complete(self, outcome: Result<CallReply, SendError>) {
        if let Some(reply) = self.reply {
            reply.send(CommandReply::Final(outcome));
        }
    }

    /// Passes the redirect and the script call to the caller, which follows the redirect.
    pub(crate) fn redirect(self, redirect: Redirect) {
        let PendingCommand { call, reply, .. } = self;
        if let (NodeRequest::Script(call), Some(reply)) = (call, reply) {
            reply.send(CommandReply::Redirect(redirect, call));
        }
    }

    /// Returns the encoded command of a script call of its own.
    pub(crate) fn encoded(&mut self) -> Option<&mut Cmd> {
        match &mut self.call {
            NodeRequest::Script(call) => Some(&mut call.command),
            NodeRequest::Shared(_) => None,
        }
    }
}

/// Reply that a caller is waiting for, with a timer that measures the wait. A future that resolves
/// to [`SendError::LOST`] if the connection dropped the command, because the script may or may not
/// have run.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(crate) receiver: ReplyReceiver,
    /// Timer that records the result in the node's statistics and the call's trace. `None` if the
    /// node has no circuit breaker or the call was not sent.
    pub(crate) tracker: Option<CallTracker>,
}

impl PendingReply {
    /// Ends the caller's wait. Returns whether the command has not been written and never will be.
    pub(crate) fn stop_waiting(&mut self) -> bool {
        // Records the wait so far.
        self.tracker = None;
        self.receiver.abandon()
    }
}

impl Future for PendingReply {
    type Output = CommandReply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CommandReply> {
        let reply = ready!(Pin::new(&mut self.receiver).poll(context));
        if let Some(tracker) = self.tracker.take() {
            tracker.report(&reply);
        }
        Poll::Ready(reply)
    }
}
