//! One node holds every key: a single server, or the master that sentinels name.
//!
//! Not here: who the master is (`sentinel` follows that and swaps the node).

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use redis::Value;
use smallvec::SmallVec;

use super::node::Node;
use super::node_breaker::Awaited;
use super::pending_command::{Batch, Reply};
use super::transport::{Replies, ScriptCall, ScriptCalls, SendError, SendErrorKind};
use crate::domain::Executed;

/// The node that holds every key, while one is known.
#[derive(Debug, Default)]
pub(crate) struct Master {
    node: ArcSwapOption<Node>,
}

impl Master {
    /// From now on it is this one. ScriptCalls queued at the former one are still answered by it.
    pub(crate) fn replace(&self, node: Node) {
        self.node.store(Some(Arc::new(node)));
    }

    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.load_full()
    }

    pub(crate) async fn send(&self, items: ScriptCalls) -> Replies {
        let mut awaited: SmallVec<[Awaited; 1]> = SmallVec::new();
        match &*self.node.load() {
            Some(node) => {
                let mut parcel = Batch::new();
                for item in items {
                    let (ticket, reply) = node.ticket(item, false);
                    parcel.extend(ticket);
                    awaited.push(reply);
                }
                node.submit(parcel);
            }
            None => return items.into_iter().map(|_| Err(unknown_master())).collect(),
        }
        let mut replies = Replies::with_capacity(awaited.len());
        for reply in awaited {
            replies.push(here(reply.reply().await));
        }
        replies
    }

    pub(crate) fn post(&self, item: ScriptCall) {
        // Nobody waits for it: where no node is known it is lost.
        if let Some(node) = &*self.node.load() {
            node.post(item);
        }
    }
}

fn unknown_master() -> SendError {
    SendError { executed: Executed::No, fault: SendErrorKind::NotConnected }
}

/// Where there is only one node, a redirection leads nowhere (it means that a node of a cluster is
/// configured as a single server).
fn here(reply: Reply) -> Result<Value, SendError> {
    match reply {
        Reply::Value(value) => Ok(value),
        Reply::Redirect(..) => {
            Err(SendError { executed: Executed::No, fault: SendErrorKind::Moving })
        }
        Reply::Failed(error) => Err(error),
    }
}
