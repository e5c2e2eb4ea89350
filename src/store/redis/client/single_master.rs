//! Topology with one master for every key: a standalone server, or the master that the sentinels
//! name.
//!
//! Not here: finding the master (`sentinel` does, and replaces the node).

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use redis::Value;
use smallvec::SmallVec;

use super::node::Node;
use super::pending_command::{Batch, CommandReply, PendingReply};
use super::transport::{Replies, ScriptCall, ScriptCalls, SendError, SendErrorKind};

/// Topology with one node for every key. Without a node until the master is known.
#[derive(Debug, Default)]
pub(crate) struct SingleMaster {
    node: ArcSwapOption<Node>,
}

impl SingleMaster {
    /// Replaces the master. The previous node still answers the script calls that it has queued.
    pub(crate) fn replace(&self, node: Node) {
        self.node.store(Some(Arc::new(node)));
    }

    /// Returns the master's node; `None` until the master is known.
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.load_full()
    }

    /// Sends script calls to the master and waits for their replies.
    pub(crate) async fn send(&self, calls: ScriptCalls) -> Replies {
        let mut pending: SmallVec<[PendingReply; 1]> = SmallVec::new();
        match &*self.node.load() {
            Some(node) => {
                let mut batch = Batch::new();
                for call in calls {
                    let (command, reply) = node.prepare(call, false);
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
            replies.push(without_redirect(reply.wait().await));
        }
        replies
    }

    /// Sends a script call without waiting for its reply. The call is dropped until a master is
    /// known.
    pub(crate) fn post(&self, call: ScriptCall) {
        if let Some(node) = &*self.node.load() {
            node.post(call);
        }
    }
}

/// Turns a redirection into an error. A single master redirects only if it is part of a cluster,
/// contrary to the settings.
fn without_redirect(reply: CommandReply) -> Result<Value, SendError> {
    match reply {
        CommandReply::Value(value) => Ok(value),
        CommandReply::Redirect(..) => Err(SendError::not_executed(SendErrorKind::Moving)),
        CommandReply::Failed(error) => Err(error),
    }
}
