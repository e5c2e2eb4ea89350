//! One node holds every key: a single server, or the master that sentinels name.
//!
//! Not here: who the master is (`sentinel` follows that and swaps the node).

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use redis::Value;

use super::node::{Node, reply};
use super::ticket::{Parcel, Reply, Ticket};
use super::transport::{Item, Items, Replies, SendError, SendFault};
use crate::domain::Executed;

/// The node that holds every key, while one is known.
#[derive(Debug, Default)]
pub(super) struct Master {
    node: ArcSwapOption<Node>,
}

impl Master {
    /// From now on it is this one. Items queued at the former one are still answered by it.
    pub(super) fn replace(&self, node: Node) {
        self.node.store(Some(Arc::new(node)));
    }

    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.node.load_full()
    }

    pub(super) async fn send(&self, items: Items) -> Replies {
        let (parcel, receivers): (Parcel, Vec<_>) =
            items.into_iter().map(|item| Ticket::new(item, false)).unzip();
        self.submit(parcel);
        let mut replies = Replies::with_capacity(receivers.len());
        for receiver in receivers {
            replies.push(here(reply(receiver).await));
        }
        replies
    }

    pub(super) fn post(&self, item: Item) {
        self.submit(Parcel::from_buf([Ticket::posted(item)]));
    }

    fn submit(&self, parcel: Parcel) {
        match &*self.node.load() {
            Some(node) => node.submit(parcel),
            None => parcel.into_iter().for_each(|ticket| ticket.refuse(SendFault::NotConnected)),
        }
    }
}

/// Where there is only one node, a redirection leads nowhere (it means that a node of a cluster is
/// configured as a single server).
fn here(reply: Reply) -> Result<Value, SendError> {
    match reply {
        Reply::Value(value) => Ok(value),
        Reply::Redirect(..) => Err(SendError { executed: Executed::No, fault: SendFault::Moving }),
        Reply::Failed(error) => Err(error),
    }
}
