//! A script call on its way through a connection, and the channel that carries its reply.
//!
//! Not here: writing and reading (`connection`).

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::error_reply::Redirect;
use super::node_breaker::CallTracker;
use super::transport::{ScriptCall, SendError, SendErrorKind};
use crate::store::redis::script::library::Script;

/// Commands that one call sends to one node. They are queued together, so that they leave in one
/// write.
pub(crate) type Batch = SmallVec<[PendingCommand; 1]>;

/// The result of a command.
#[derive(Debug)]
pub(crate) enum CommandReply {
    /// It ran.
    Value(Value),
    /// It did not run: another node holds its slot. The script call is handed back.
    Redirect(Redirect, ScriptCall),
    /// It has no reply.
    Failed(SendError),
}

/// A command in a connection's queue.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) call: ScriptCall,
    /// Send ASKING before it.
    pub(crate) asking: bool,
    /// How often it was answered with NOSCRIPT. From the first one on, SCRIPT LOAD precedes it.
    pub(crate) loads: u8,
    /// `None` if nobody waits for the reply.
    reply: Option<oneshot::Sender<CommandReply>>,
}

/// A command that was written and not answered yet. If it is dropped, its caller learns that the
/// outcome is unknown.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// How many replies (to SCRIPT LOAD and ASKING) precede its own.
    pub(crate) skip: usize,
    pub(crate) loads: u8,
    script: &'static Script,
    slot: Option<u16>,
    asking: bool,
    reply: Option<oneshot::Sender<CommandReply>>,
}

impl PendingCommand {
    /// A command, and the receiver of its reply.
    pub(crate) fn new(
        call: ScriptCall,
        asking: bool,
    ) -> (PendingCommand, oneshot::Receiver<CommandReply>) {
        let (reply, receiver) = oneshot::channel();
        (PendingCommand { call, asking, loads: 0, reply: Some(reply) }, receiver)
    }

    /// A command whose reply is discarded.
    pub(crate) fn without_reply(call: ScriptCall) -> PendingCommand {
        PendingCommand { call, asking: false, loads: 0, reply: None }
    }

    /// Whether its caller has stopped waiting.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Fails the command without writing it.
    pub(crate) fn reject(self, kind: SendErrorKind) {
        if let Some(reply) = self.reply {
            // An error means that the caller has stopped waiting.
            let _ = reply.send(CommandReply::Failed(SendError::not_executed(kind)));
        }
    }

    /// Splits it into the command to be written and what is needed to handle its reply.
    pub(crate) fn split(self, skip: usize) -> (Cmd, InFlight) {
        let PendingCommand { call: ScriptCall { script, command, slot }, asking, loads, reply } =
            self;
        (command, InFlight { skip, loads, script, slot, asking, reply })
    }
}

impl InFlight {
    /// Hands the reply to the caller.
    pub(crate) fn complete(self, outcome: CommandReply) {
        if let Some(reply) = self.reply {
            // An error means that the caller's deadline has passed.
            let _ = reply.send(outcome);
        }
    }

    /// Back into the queue, to be sent again after a SCRIPT LOAD.
    pub(crate) fn reload(self, command: Cmd) -> PendingCommand {
        let InFlight { loads, script, slot, asking, reply, .. } = self;
        let call = ScriptCall { script, command, slot };
        PendingCommand { call, asking, loads: loads + 1, reply }
    }

    /// Back to the caller, who knows the other nodes.
    pub(crate) fn redirect(self, redirect: Redirect, command: Cmd) {
        let call = ScriptCall { script: self.script, command, slot: self.slot };
        self.complete(CommandReply::Redirect(redirect, call));
    }
}

/// A reply that has not arrived yet.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(crate) receiver: oneshot::Receiver<CommandReply>,
    /// Reports the result to the node's breaker. `None` if there is no breaker or nothing was sent.
    pub(crate) tracker: Option<CallTracker>,
}

impl PendingReply {
    /// The reply of a call that is sent to no node.
    pub(crate) fn rejected(call: ScriptCall, kind: SendErrorKind) -> PendingReply {
        let (command, receiver) = PendingCommand::new(call, false);
        command.reject(kind);
        PendingReply { receiver, tracker: None }
    }

    /// Waits for the reply. A command that was dropped without one had been written.
    pub(crate) async fn wait(self) -> CommandReply {
        let PendingReply { receiver, tracker } = self;
        let reply = receiver.await.unwrap_or(CommandReply::Failed(SendError::LOST));
        if let Some(tracker) = tracker {
            tracker.report(&reply);
        }
        reply
    }
}
