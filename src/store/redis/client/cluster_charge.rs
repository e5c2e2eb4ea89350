//! Queues plain charges (INCRBY commands) for a cluster, each for the node that owns its hash slot.
//!
//! Not here: script calls and redirects (`cluster`).

use std::time::Instant;

use smallvec::SmallVec;

use super::cluster::Cluster;
use super::pending_command::NodeCommand;
use super::plain_charge::{NodeCharges, PendingCharges, PlainCharges};

/// Plain charges to send to one node, with their indices in the call.
struct Charges {
    owner: u16,
    indices: SmallVec<[u16; 8]>,
    charges: PlainCharges,
}

impl Cluster {
    /// Queues each plain charge (INCRBY) for the node that owns its hash slot. Queues nothing and
    /// returns `None` unless the server time of each of these nodes is known.
    pub(crate) fn charge(
        &self,
        charges: PlainCharges,
        deadline: Option<Instant>,
    ) -> Option<PendingCharges> {
        let table = self.table.load();
        let count = charges.len();
        let mut nodes: SmallVec<[Charges; 3]> = SmallVec::new();
        for (index, charge) in (0..).zip(charges) {
            let owner = table.owner(charge.slot);
            match nodes.iter_mut().find(|node| node.owner == owner) {
                Some(node) => {
                    node.indices.push(index);
                    node.charges.push(charge);
                }
                None => {
                    table.node(owner).filter(|node| node.can_charge(node.now()))?;
                    let (indices, charges) =
                        (SmallVec::from_iter([index]), PlainCharges::from_iter([charge]));
                    nodes.push(Charges { owner, indices, charges });
                }
            }
        }
        let mut pending = SmallVec::new();
        for Charges { owner, indices, charges } in nodes {
            let node = table.node(owner)?;
            let charges = NodeCommand::Charges(charges);
            let (command, reply) = node.prepare(charges, deadline, false, node.now());
            node.enqueue(command.into_iter().collect());
            pending.push(NodeCharges { reply, indices });
        }
        Some(PendingCharges::new(pending, count))
    }
}
