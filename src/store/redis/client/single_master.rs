//! Topology in which a single master holds all keys: a standalone server, or the master that the
//! sentinels report.
//!
//! Not here: finding the master and replacing its node (`sentinel`).

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::node::Node;
use super::pending_command::Batch;
use super::send_error::SendError;
use super::transport::{NodeRequests, PendingCall, PendingCalls};
use crate::domain::FailureKind;
use crate::store::redis::script::library::ScriptCall;

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

    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.load_full()
    }

    /// Queues requests for the master, all in one batch.
    pub(crate) fn submit(&self, calls: NodeRequests) -> PendingCalls {
        let node = self.node.load();
        let Some(node) = &*node else {
            let error = SendError::not_executed(FailureKind::NotConnected);
            return calls.into_iter().map(|_| PendingCall::ready(Err(error))).collect();
        };
        let mut batch = Batch::new();
        let mut pending = PendingCalls::new();
        for call in calls {
            let (command, reply) = node.prepare(call, false);
            batch.extend(command);
            pending.push(PendingCall::new(reply, None));
        }
        node.enqueue(batch);
        pending
    }

    /// Sends a script call to the master and discards its reply. Drops the call if the master is
    /// not known yet.
    pub(crate) fn send_in_background(&self, call: ScriptCall) {
        if let Some(node) = &*self.node.load() {
            node.send_in_background(call);
        }
    }
}
