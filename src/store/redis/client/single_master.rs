//! Topology in which a single master holds all keys: a standalone server, or the master that the
//! sentinels report.
//!
//! Not here: finding the master and replacing its node (`sentinel`).

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use smallvec::smallvec;

use super::node::Node;
use super::pending_command::{Batch, NodeCommand};
use super::plain_charge::{NodeCharges, PendingCharges, PlainCharges};
use super::shared_write::SharedCall;
use super::transport::{
    PendingScript, PendingScripts, PendingShared, ScriptCall, ScriptCalls, SendError, SendErrorKind,
};

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

    /// Queues script calls for the master, all in one batch.
    pub(crate) fn submit(&self, calls: ScriptCalls) -> PendingScripts {
        let node = self.node.load();
        let Some(node) = &*node else {
            let error = SendError::not_executed(SendErrorKind::NotConnected);
            return calls.into_iter().map(|_| PendingScript::ready(Err(error))).collect();
        };
        let mut batch = Batch::new();
        let mut pending = PendingScripts::new();
        for call in calls {
            let (command, reply) = node.prepare_script(call);
            batch.extend(command);
            pending.push(PendingScript::new(reply, None));
        }
        node.enqueue(batch);
        pending
    }

    /// Queues charges of counters with plain commands. Queues nothing and returns `None` if the
    /// master or its server time is not known.
    pub(crate) fn charge(
        &self,
        charges: PlainCharges,
        deadline: Option<Instant>,
    ) -> Option<PendingCharges> {
        let node = self.node.load();
        let node = node.as_ref()?;
        // Read once, because reading the clock is a per cent of the call.
        let now = node.now();
        if !node.can_charge(now) {
            return None;
        }
        let count = charges.len();
        let (command, reply) = node.prepare(NodeCommand::Charges(charges), deadline, false, now);
        node.enqueue(command.into_iter().collect());
        Some(PendingCharges::new(smallvec![NodeCharges::all(reply, count)], count))
    }

    /// Queues a call that can share a script call. Returns `None` if the master is not known.
    pub(crate) fn submit_shared(
        &self,
        call: SharedCall,
        deadline: Option<Instant>,
    ) -> Option<PendingShared> {
        let node = self.node.load();
        let node = node.as_ref()?;
        let call = NodeCommand::Shared(Box::new(call));
        let (command, reply) = node.prepare(call, deadline, false, node.now());
        node.enqueue(command.into_iter().collect());
        Some(PendingShared::new(reply))
    }

    /// Sends a script call to the master and discards its reply. Drops the call if the master is
    /// not known yet.
    pub(crate) fn send_in_background(&self, call: ScriptCall) {
        if let Some(node) = &*self.node.load() {
            node.send_in_background(call);
        }
    }
}
