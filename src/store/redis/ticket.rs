//! An item on its way through a lane, with whoever waits for its reply.
//!
//! Not here: the way (`lane`).

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::fault::Redirect;
use super::script::Script;
use super::transport::{Item, SendError, SendFault};
use crate::domain::Executed;

/// The items of one call for one node: they enter a queue together, so that they go out in one
/// write.
pub(super) type Parcel = SmallVec<[Ticket; 1]>;

/// What becomes of an item.
#[derive(Debug)]
pub(super) enum Reply {
    /// It ran, and this is its reply.
    Value(Value),
    /// It did not run, because it belongs elsewhere: here it is back.
    Redirect(Redirect, Item),
    /// It brings no reply.
    Failed(SendError),
}

/// An item that waits to be written.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) item: Item,
    /// ASKING goes before it.
    pub(super) asking: bool,
    /// How often it was answered with NOSCRIPT; SCRIPT LOAD goes before it if ever.
    pub(super) loads: u8,
    /// Nobody waits for the reply of a posted item.
    reply: Option<oneshot::Sender<Reply>>,
}

/// An item that was written and is not answered yet. Dropped unanswered, its caller is told that
/// nobody knows whether it ran.
#[derive(Debug)]
pub(super) struct Waiting {
    /// How many replies (of SCRIPT LOAD and ASKING) come before its own.
    pub(super) skip: usize,
    pub(super) loads: u8,
    script: &'static Script,
    slot: Option<u16>,
    asking: bool,
    reply: Option<oneshot::Sender<Reply>>,
}

impl Ticket {
    /// A ticket, and where its reply will arrive.
    pub(super) fn new(item: Item, asking: bool) -> (Ticket, oneshot::Receiver<Reply>) {
        let (reply, receiver) = oneshot::channel();
        (Ticket { item, asking, loads: 0, reply: Some(reply) }, receiver)
    }

    /// A ticket that nobody waits for.
    pub(super) fn posted(item: Item) -> Ticket {
        Ticket { item, asking: false, loads: 0, reply: None }
    }

    /// Whether whoever waited for it has gone.
    pub(super) fn is_stale(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// It was not written.
    pub(super) fn refuse(self, fault: SendFault) {
        if let Some(reply) = self.reply {
            // Nobody listens any more: then nobody has to be told.
            let _ = reply.send(Reply::Failed(SendError { executed: Executed::No, fault }));
        }
    }

    /// The command for the wire, and the rest for whoever reads the replies.
    pub(super) fn split(self, skip: usize) -> (Cmd, Waiting) {
        let Ticket { item: Item { script, command, slot }, asking, loads, reply } = self;
        (command, Waiting { skip, loads, script, slot, asking, reply })
    }
}

impl Waiting {
    pub(super) fn answer(self, answer: Reply) {
        if let Some(reply) = self.reply {
            // The caller's deadline passed while the item was under way.
            let _ = reply.send(answer);
        }
    }

    /// Back into the queue, behind a SCRIPT LOAD.
    pub(super) fn load_again(self, command: Cmd) -> Ticket {
        let Waiting { loads, script, slot, asking, reply, .. } = self;
        Ticket { item: Item { script, command, slot }, asking, loads: loads + 1, reply }
    }

    /// Back to the caller, who knows the other nodes.
    pub(super) fn redirect(mut self, redirect: Redirect, command: Cmd) {
        let item = Item { script: self.script, command, slot: self.slot };
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(Reply::Redirect(redirect, item));
        }
    }
}
