//! Commands queued for a connection or in flight, and the channels that carry their replies.
//!
//! Not here: writing and reading (`connection`).

use std::time::Instant;

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::error_reply::Redirect;
use super::node_breaker::CallTracker;
use super::transport::{ScriptCall, SendError, SendErrorKind};
use crate::domain::Micros;
use crate::store::redis::script::library::Script;

/// Commands of one call to one node. They are queued together, so that one write contains them all.
pub(crate) type Batch = SmallVec<[PendingCommand; 1]>;

/// Result of a command: the reply, a redirection, or an error.
#[derive(Debug)]
pub(crate) enum CommandReply {
    /// The script ran and returned this value.
    Value(Value),
    /// The script did not run, because another node owns the hash slot. Contains the script call,
    /// so that it can be sent there.
    Redirect(Redirect, ScriptCall),
    /// The command was rejected, answered with an error, or lost.
    Failed(SendError),
}

/// Command that waits in the queue of a connection.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) call: ScriptCall,
    /// Whether to send ASKING before the command.
    pub(crate) asking: bool,
    /// Number of times that the server answered NOSCRIPT. If above 0, SCRIPT LOAD is sent before
    /// the command.
    pub(crate) loads: u8,
    /// Time at which the command was queued.
    pub(crate) queued_at: Micros,
    /// Time by which the caller needs the reply; `Micros(u64::MAX)` if there is no deadline.
    pub(crate) deadline: Micros,
    /// Sender of the reply to the caller; `None` if no caller waits for it.
    reply: Option<oneshot::Sender<CommandReply>>,
}

/// Command that was written and not answered yet. If dropped, its caller receives
/// [`SendError::LOST`].
#[derive(Debug)]
pub(crate) struct InFlight {
    /// Number of replies (to SCRIPT LOAD and ASKING) that precede the command's own reply.
    pub(crate) skip: usize,
    pub(crate) loads: u8,
    script: &'static Script,
    slot: Option<u16>,
    call_deadline: Option<Instant>,
    queued_at: Micros,
    deadline: Micros,
    asking: bool,
    reply: Option<oneshot::Sender<CommandReply>>,
}

impl PendingCommand {
    /// Creates a command and the receiver of its reply.
    pub(crate) fn new(
        call: ScriptCall,
        asking: bool,
    ) -> (PendingCommand, oneshot::Receiver<CommandReply>) {
        let (reply, receiver) = oneshot::channel();
        (PendingCommand { asking, reply: Some(reply), ..PendingCommand::of(call) }, receiver)
    }

    /// Creates a command whose reply is discarded.
    pub(crate) fn without_reply(call: ScriptCall) -> PendingCommand {
        PendingCommand::of(call)
    }

    fn of(call: ScriptCall) -> PendingCommand {
        PendingCommand {
            call,
            asking: false,
            loads: 0,
            queued_at: Micros::ZERO,
            deadline: Micros(u64::MAX),
            reply: None,
        }
    }

    /// Returns whether the caller has stopped waiting for the reply.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Fails the command, which has not been written, with an error of this kind.
    pub(crate) fn reject(self, kind: SendErrorKind) {
        if let Some(reply) = self.reply {
            // `send` fails if the caller has stopped waiting.
            let _ = reply.send(CommandReply::Failed(SendError::not_executed(kind)));
        }
    }

    /// Splits the command into the bytes to write and the state for handling the reply. `skip` is
    /// the number of replies that precede the command's own reply.
    pub(crate) fn split(self, skip: usize) -> (Cmd, InFlight) {
        let PendingCommand { call, asking, loads, queued_at, deadline, reply } = self;
        let ScriptCall { script, command, slot, deadline: call_deadline } = call;
        let in_flight = InFlight {
            skip,
            loads,
            script,
            slot,
            call_deadline,
            queued_at,
            deadline,
            asking,
            reply,
        };
        (command, in_flight)
    }
}

impl InFlight {
    /// Sends the reply to the caller, if it still waits.
    pub(crate) fn complete(self, outcome: CommandReply) {
        if let Some(reply) = self.reply {
            // `send` fails if the caller's deadline has passed.
            let _ = reply.send(outcome);
        }
    }

    /// Converts the command back into a pending one, which is sent again after a SCRIPT LOAD.
    pub(crate) fn reload(self, command: Cmd) -> PendingCommand {
        let InFlight {
            loads, script, slot, call_deadline, queued_at, deadline, asking, reply, ..
        } = self;
        let call = ScriptCall { script, command, slot, deadline: call_deadline };
        PendingCommand { call, asking, loads: loads + 1, queued_at, deadline, reply }
    }

    /// Passes the redirection and the script call to the caller, which sends the call to the other
    /// node.
    pub(crate) fn redirect(self, redirect: Redirect, command: Cmd) {
        let InFlight { script, slot, call_deadline: deadline, .. } = self;
        let call = ScriptCall { script, command, slot, deadline };
        self.complete(CommandReply::Redirect(redirect, call));
    }
}

/// Reply to a command that may not have arrived yet.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(crate) receiver: oneshot::Receiver<CommandReply>,
    /// Timer that reports the result to the node's circuit breaker. `None` if the node has no
    /// breaker or the call was not sent.
    pub(crate) tracker: Option<CallTracker>,
}

impl PendingReply {
    /// Creates the error reply to a call that was not sent to any node.
    pub(crate) fn rejected(call: ScriptCall, kind: SendErrorKind) -> PendingReply {
        let (command, receiver) = PendingCommand::new(call, false);
        command.reject(kind);
        PendingReply { receiver, tracker: None }
    }

    /// Waits for the reply. If the connection dropped the command, the script may or may not have
    /// run.
    pub(crate) async fn wait(self) -> CommandReply {
        let PendingReply { receiver, tracker } = self;
        let reply = receiver.await.unwrap_or(CommandReply::Failed(SendError::LOST));
        if let Some(tracker) = tracker {
            tracker.report(&reply);
        }
        reply
    }
}
