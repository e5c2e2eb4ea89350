//! An item on its way through a connection, with whoever waits for its reply.
//!
//! Not here: the way (`connection`).

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::error_reply::Redirect;
use super::transport::{ScriptCall, SendError, SendErrorKind};
use crate::domain::Executed;
use crate::store::redis::script::library::Script;

/// The items of one call for one node: they enter a queue together, so that they go out in one
/// write.
pub(crate) type Batch = SmallVec<[PendingCommand; 1]>;

/// What becomes of an item.
#[derive(Debug)]
pub(crate) enum Reply {
    /// It ran, and this is its reply.
    Value(Value),
    /// It did not run, because it belongs elsewhere: here it is back.
    Redirect(Redirect, ScriptCall),
    /// It brings no reply.
    Failed(SendError),
}

/// An item that waits to be written.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) item: ScriptCall,
    /// ASKING goes before it.
    pub(crate) asking: bool,
    /// How often it was answered with NOSCRIPT; SCRIPT LOAD goes before it if ever.
    pub(crate) loads: u8,
    /// Nobody waits for the reply of a posted item.
    reply: Option<oneshot::Sender<Reply>>,
}

/// An item that was written and is not answered yet. Dropped unanswered, its caller is told that
/// nobody knows whether it ran.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// How many replies (of SCRIPT LOAD and ASKING) come before its own.
    pub(crate) skip: usize,
    pub(crate) loads: u8,
    script: &'static Script,
    slot: Option<u16>,
    asking: bool,
    reply: Option<oneshot::Sender<Reply>>,
}

impl PendingCommand {
    /// A ticket, and where its reply will arrive.
    pub(crate) fn new(
        item: ScriptCall,
        asking: bool,
    ) -> (PendingCommand, oneshot::Receiver<Reply>) {
        let (reply, receiver) = oneshot::channel();
        (PendingCommand { item, asking, loads: 0, reply: Some(reply) }, receiver)
    }

    /// A ticket that nobody waits for.
    pub(crate) fn posted(item: ScriptCall) -> PendingCommand {
        PendingCommand { item, asking: false, loads: 0, reply: None }
    }

    /// Whether whoever waited for it has gone.
    pub(crate) fn is_stale(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// It was not written.
    pub(crate) fn refuse(self, fault: SendErrorKind) {
        if let Some(reply) = self.reply {
            // Nobody listens any more: then nobody has to be told.
            let _ = reply.send(Reply::Failed(SendError { executed: Executed::No, fault }));
        }
    }

    /// The command for the wire, and the rest for whoever reads the replies.
    pub(crate) fn split(self, skip: usize) -> (Cmd, InFlight) {
        let PendingCommand { item: ScriptCall { script, command, slot }, asking, loads, reply } =
            self;
        (command, InFlight { skip, loads, script, slot, asking, reply })
    }
}

impl InFlight {
    pub(crate) fn answer(self, answer: Reply) {
        if let Some(reply) = self.reply {
            // The caller's deadline passed while the item was under way.
            let _ = reply.send(answer);
        }
    }

    /// Back into the queue, behind a SCRIPT LOAD.
    pub(crate) fn load_again(self, command: Cmd) -> PendingCommand {
        let InFlight { loads, script, slot, asking, reply, .. } = self;
        PendingCommand {
            item: ScriptCall { script, command, slot },
            asking,
            loads: loads + 1,
            reply,
        }
    }

    /// Back to the caller, who knows the other nodes.
    pub(crate) fn redirect(mut self, redirect: Redirect, command: Cmd) {
        let item = ScriptCall { script: self.script, command, slot: self.slot };
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(Reply::Redirect(redirect, item));
        }
    }
}
