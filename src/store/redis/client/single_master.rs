//! Topology in which a single master holds all keys: a standalone server, or the master that the
//! sentinels report.
//!
//! Not here: finding the master and replacing its node (`sentinel`).

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use redis::Value;
use smallvec::SmallVec;

use super::node::Node;
use super::pending_command::{Batch, CommandReply, NodeCommand, PendingReply};
use super::plain_charge::{ChargeReplies, PlainCharges, into_charge_replies};
use super::transport::{Replies, ScriptCall, ScriptCalls, SendError, SendErrorKind};

/// Topology in which one master holds all keys. Has no node until the master is known.
#[derive(Debug, Default)]
pub(crate) struct SingleMaster {
    node: ArcSwapOption<Node>,
}

impl SingleMaster {
    /// Replaces the master. Script calls that are already queued for the previous master are still
    /// sent to that master.
    pub(crate) fn replace(&self, node: Node) {
        self.node.store(Some(Arc::new(node)));
    }

    /// Returns the master node, or `None` until the master is known.
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.load_full()
    }

    /// Sends script calls to the master and waits for all replies, with no deadline for the wait.
    pub(crate) async fn send(&self, calls: ScriptCalls) -> Replies {
        let mut pending: SmallVec<[PendingReply; 1]> = SmallVec::new();
        match &*self.node.load() {
            Some(node) => {
                let mut batch = Batch::new();
                for call in calls {
                    let (command, reply) = node.prepare_script(call);
                    batch.extend(command);
                    pending.push(reply);
                }
                node.enqueue(batch);
            }
            None => {
                let error = SendError::not_executed(SendErrorKind::NotConnected);
                return calls.into_iter().map(|_| Err(error)).collect();
            }
        }
        let mut replies = Replies::with_capacity(pending.len());
        for reply in pending {
            replies.push(reject_redirect(reply.wait().await));
        }
        replies
    }

    /// Charges counters with plain commands. Queues the commands at once; the future waits for the
    /// replies. Sends nothing and returns `None` if the master or its server time is not known.
    pub(crate) fn charge(
        &self,
        charges: PlainCharges,
        deadline: Option<Instant>,
    ) -> impl Future<Output = Option<ChargeReplies>> + Send + use<> {
        let count = charges.len();
        // Outside of the future, which thereby stays small.
        let reply = self.enqueue_charges(charges, deadline);
        async move { Some(into_charge_replies(reply?.wait().await, count)) }
    }

    fn enqueue_charges(
        &self,
        charges: PlainCharges,
        deadline: Option<Instant>,
    ) -> Option<PendingReply> {
        let node = self.node.load();
        let node = node.as_ref()?;
        // Read once, because reading the clock is a per cent of the call.
        let now = node.now();
        if !node.can_charge(now) {
            return None;
        }
        let (command, reply) = node.prepare(NodeCommand::Charges(charges), deadline, false, now);
        node.enqueue(command.into_iter().collect());
        Some(reply)
    }

    /// Sends a script call to the master and discards its reply. Drops the call if the master is
    /// not known yet.
    pub(crate) fn send_in_background(&self, call: ScriptCall) {
        if let Some(node) = &*self.node.load() {
            node.send_in_background(call);
        }
    }
}

/// Converts a reply from a single master into a result. A redirect becomes an error, because it
/// shows that the server is a cluster node, contrary to the settings.
fn reject_redirect(reply: CommandReply) -> Result<Value, SendError> {
    match reply {
        CommandReply::Value(value) => Ok(value),
        CommandReply::Redirect(..) => Err(SendError::not_executed(SendErrorKind::Reconfiguring)),
        CommandReply::Failed(error) => Err(error),
        // Only plain charges get such a reply.
        CommandReply::Charged(_) => Err(SendError::LOST),
    }
}
