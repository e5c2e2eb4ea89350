//! Sends plain charges (INCRBY commands) to a cluster in parallel, each to the node that owns its
//! hash slot.
//!
//! Not here: script calls and redirects (`cluster`).

use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt};
use smallvec::SmallVec;

use super::cluster::{Cluster, sleep_until_deadline};
use super::pending_command::NodeCommand;
use super::plain_charge::{ChargeReplies, ChargeReply, PlainCharges, into_charge_replies};
use super::transport::SendError;

/// Plain charges to send to one node, with their indices in the call.
struct NodeCharges {
    owner: u16,
    indices: SmallVec<[usize; 4]>,
    charges: PlainCharges,
}

impl Cluster {
    /// Sends each plain charge (INCRBY) to the node that owns its hash slot, and waits for the
    /// replies until the deadline. Sends nothing and returns `None` unless the server time of each
    /// of these nodes is known.
    pub(crate) async fn charge(
        &self,
        charges: PlainCharges,
        deadline: Option<Instant>,
    ) -> Option<ChargeReplies> {
        let table = self.table.load_full();
        let count = charges.len();
        let mut nodes: SmallVec<[NodeCharges; 3]> = SmallVec::new();
        for (index, charge) in charges.into_iter().enumerate() {
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
                    nodes.push(NodeCharges { owner, indices, charges });
                }
            }
        }
        // A charge without a reply at the deadline is one with an unknown outcome.
        let mut replies: ChargeReplies =
            std::iter::repeat_n(ChargeReply::failed(SendError::LOST), count).collect();
        let mut waits = FuturesUnordered::new();
        for NodeCharges { owner, indices, charges } in nodes {
            let Some(node) = table.node(owner) else { continue };
            let charges = NodeCommand::Charges(charges);
            let (command, reply) = node.prepare(charges, deadline, false, node.now());
            node.enqueue(command.into_iter().collect());
            waits.push(async move { (reply.wait().await, indices) });
        }
        let timer = sleep_until_deadline(deadline);
        tokio::pin!(timer);
        loop {
            tokio::select! {
                biased;
                next = waits.next() => {
                    let Some((reply, indices)) = next else { return Some(replies) };
                    let charged = into_charge_replies(reply, indices.len());
                    for (index, reply) in indices.into_iter().zip(charged) {
                        replies[index] = reply;
                    }
                }
                () = &mut timer => return Some(replies),
            }
        }
    }
}
