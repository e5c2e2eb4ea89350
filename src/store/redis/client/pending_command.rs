//! Commands queued for a connection or in flight, and the channels that carry their replies.
//!
//! Not here: writing commands and reading replies (`connection`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::error_reply::Redirect;
use super::node_breaker::CallTracker;
use super::plain_charge::{ChargeReplies, PlainCharges};
use super::reply_slot::{ReplyReceiver, ReplySender, reply_slot};
use super::shared_write::SharedCall;
use super::transport::{ScriptCall, SendError, SendErrorKind};
use crate::domain::Micros;
use crate::store::redis::script::library::Script;
use crate::store::redis::script::reply::ScriptReply;

/// Commands that one call sends to one node, queued together so that a single write contains all of
/// them.
pub(crate) type Batch = SmallVec<[PendingCommand; 1]>;

/// Result of a command: the reply, a redirect, or an error.
#[derive(Debug)]
pub(crate) enum CommandReply {
    /// The script ran and returned this value.
    Value(Value),
    /// The script did not run, because the node replied with a redirect. Contains the script
    /// call, so that it can be sent again. Boxed, so that replies stay small.
    Redirect(Redirect, Box<ScriptCall>),
    /// All plain charges were written. Contains the replies, one per charge.
    Charged(ChargeReplies),
    /// The call shared a script call, which decided it.
    Decided(ScriptReply),
    /// The command was rejected, failed with an error reply, or was lost.
    Failed(SendError),
}

/// Request to a node for one call.
#[derive(Debug)]
pub(crate) enum NodeCommand {
    /// Call to a Lua script. Boxed, so that the entries of a connection's queue stay small.
    Script(Box<ScriptCall>),
    /// INCRBY commands, written and completed together.
    Charges(PlainCharges),
    /// Call that shares a script call with others of its write. Boxed as a script call is.
    Shared(Box<SharedCall>),
}

impl NodeCommand {
    pub(crate) fn script(call: ScriptCall) -> NodeCommand {
        NodeCommand::Script(Box::new(call))
    }
}

/// Command that waits in the queue of a connection.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) call: NodeCommand,
    /// Whether to send ASKING before the command.
    pub(crate) asking: bool,
    /// Number of times that the server replied NOSCRIPT. If above 0, SCRIPT LOAD is sent before
    /// the command.
    pub(crate) noscript_count: u8,
    /// Time at which the command was queued.
    pub(crate) queued_at: Micros,
    /// Time by which the caller needs the reply; `Micros(u64::MAX)` if there is no deadline.
    pub(crate) deadline: Micros,
    /// Destination of the reply; `None` if no caller waits for it.
    reply: Option<ReplyTo>,
}

/// Destination of the reply to a command.
#[derive(Debug)]
pub(crate) enum ReplyTo {
    /// The caller gets the reply.
    Caller(ReplySender),
    /// The command is the refund of plain charges that did not decide their call. Once it has
    /// ended, however it ended, the caller gets the replies to the charges. Boxed, so that the
    /// entries of a connection's queue stay small.
    Refund(Box<(ReplySender, ChargeReplies)>),
}

impl ReplyTo {
    /// Passes the reply on. Does nothing if the caller has stopped waiting.
    pub(crate) fn send(self, reply: CommandReply) {
        match self {
            ReplyTo::Caller(caller) => caller.send(reply),
            ReplyTo::Refund(refunded) => {
                let (caller, charges) = *refunded;
                caller.send(CommandReply::Charged(charges));
            }
        }
    }
}

/// Script call that was written and has no reply yet. If dropped, its caller receives
/// [`SendError::LOST`].
#[derive(Debug)]
pub(crate) struct InFlight {
    /// Number of replies (to SCRIPT LOAD and ASKING) that precede the command's own reply.
    pub(crate) preceding_replies: usize,
    pub(crate) noscript_count: u8,
    script: &'static Script,
    slot: Option<u16>,
    call_deadline: Option<Instant>,
    queued_at: Micros,
    deadline: Micros,
    asking: bool,
    reply: Option<ReplyTo>,
}

impl PendingCommand {
    /// Creates a command and the receiver of its reply.
    pub(crate) fn new(call: NodeCommand, asking: bool) -> (PendingCommand, ReplyReceiver) {
        let (sender, receiver) = reply_slot();
        let reply = Some(ReplyTo::Caller(sender));
        (PendingCommand { asking, reply, ..PendingCommand::from_command(call) }, receiver)
    }

    /// Creates the refund of plain charges that did not decide their call. After the refund,
    /// `caller` gets `replies`, the replies to the charges.
    pub(crate) fn refund(
        call: ScriptCall,
        caller: ReplySender,
        replies: ChargeReplies,
    ) -> PendingCommand {
        let reply = Some(ReplyTo::Refund(Box::new((caller, replies))));
        PendingCommand { reply, ..PendingCommand::from_command(NodeCommand::script(call)) }
    }

    /// Creates a command whose reply is discarded.
    pub(crate) fn without_reply(call: ScriptCall) -> PendingCommand {
        PendingCommand::from_command(NodeCommand::script(call))
    }

    fn from_command(command: NodeCommand) -> PendingCommand {
        PendingCommand {
            call: command,
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
        let is_refund = match &self.call {
            NodeCommand::Script(call) => call.script.is_refund(),
            NodeCommand::Charges(_) | NodeCommand::Shared(_) => false,
        };
        match &self.reply {
            Some(ReplyTo::Caller(caller)) => caller.mark_written() || is_refund,
            Some(ReplyTo::Refund(_)) | None => true,
        }
    }

    /// Returns the call if it can share a script call.
    pub(crate) fn shared(&self) -> Option<&SharedCall> {
        match &self.call {
            NodeCommand::Shared(shared) => Some(shared),
            NodeCommand::Script(_) | NodeCommand::Charges(_) => None,
        }
    }

    /// Replaces a call that can share a script call with a script call of its own.
    pub(crate) fn into_script_call(self) -> PendingCommand {
        match self.call {
            NodeCommand::Shared(shared) => {
                PendingCommand { call: NodeCommand::script(shared.encode_alone()), ..self }
            }
            NodeCommand::Script(_) | NodeCommand::Charges(_) => self,
        }
    }

    /// Returns the script of the call; `None` for plain charges.
    pub(crate) fn script(&self) -> Option<&'static Script> {
        match &self.call {
            NodeCommand::Script(call) => Some(call.script),
            NodeCommand::Charges(_) | NodeCommand::Shared(_) => None,
        }
    }

    /// Rejects the command before it is written: the caller receives an error of this kind.
    pub(crate) fn reject(self, kind: SendErrorKind) {
        self.complete(CommandReply::Failed(SendError::not_executed(kind)));
    }

    /// Sends the reply to the caller, if the caller is still waiting.
    pub(crate) fn complete(self, outcome: CommandReply) {
        if let Some(reply) = self.reply {
            reply.send(outcome);
        }
    }

    /// Splits the command into what is written and what is kept until the reply.
    /// `preceding_replies` is the number of replies that precede that of a script call.
    pub(crate) fn split(self, preceding_replies: usize) -> WriteParts {
        let PendingCommand { call, asking, noscript_count, queued_at, deadline, reply } = self;
        match call {
            NodeCommand::Script(call) => {
                let ScriptCall { script, command, slot, deadline: call_deadline } = *call;
                let in_flight = InFlight {
                    preceding_replies,
                    noscript_count,
                    script,
                    slot,
                    call_deadline,
                    queued_at,
                    deadline,
                    asking,
                    reply,
                };
                WriteParts::Script(command, in_flight)
            }
            NodeCommand::Charges(charges) => WriteParts::Charges(charges, reply),
            call @ NodeCommand::Shared(_) => WriteParts::Shared(PendingCommand {
                call,
                asking,
                noscript_count,
                queued_at,
                deadline,
                reply,
            }),
        }
    }
}

/// Parts of a [`PendingCommand`] that is about to be written.
pub(crate) enum WriteParts {
    /// Encoded command of a script call, and the state needed to handle its reply.
    Script(Cmd, InFlight),
    /// Plain charges, and the sender of the replies to the caller.
    Charges(PlainCharges, Option<ReplyTo>),
    /// Call that shares a script call. Kept whole, because it may have to be written again.
    Shared(PendingCommand),
}

impl InFlight {
    /// Sends the reply to the caller, if the caller is still waiting.
    pub(crate) fn complete(self, outcome: CommandReply) {
        if let Some(reply) = self.reply {
            reply.send(outcome);
        }
    }

    /// Converts a call that got NOSCRIPT back into a pending command, to be sent again after SCRIPT
    /// LOAD.
    pub(crate) fn reload(self, command: Cmd) -> PendingCommand {
        let InFlight {
            preceding_replies: _,
            noscript_count,
            script,
            slot,
            call_deadline,
            queued_at,
            deadline,
            asking,
            reply,
        } = self;
        let call = ScriptCall { script, command, slot, deadline: call_deadline };
        PendingCommand {
            call: NodeCommand::script(call),
            asking,
            noscript_count: noscript_count + 1,
            queued_at,
            deadline,
            reply,
        }
    }

    /// Passes the redirect and the script call to the caller, which follows the redirect.
    pub(crate) fn redirect(self, redirect: Redirect, command: Cmd) {
        let InFlight { script, slot, call_deadline: deadline, .. } = self;
        let call = ScriptCall { script, command, slot, deadline };
        self.complete(CommandReply::Redirect(redirect, Box::new(call)));
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
    pub(crate) fn leave(&mut self) -> bool {
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
