//! Keeps a cluster's slot table fresh, in the background.
//!
//! Not here: what the replies look like (`slots`), what the table is used for (`cluster`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::cluster::Cluster;
use super::config::Address;
use super::dialer::Context;
use super::slot_table::{SlotOwner, of_shards, of_slots};

/// Without trouble. A slot that moved unnoticed costs its items one hop each until then.
const EVERY: Duration = Duration::from_secs(30);
/// With trouble, so long after the last time; doubled while nothing changes, up to the second one:
/// an election takes seconds, and a hundred processes ask the same few nodes.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// Reads the table whenever there is trouble, until nobody holds the cluster any more.
pub(crate) async fn keep_fresh(cluster: Weak<Cluster>) {
    let mut pause = PAUSE;
    let mut known = false;
    loop {
        let Some(held) = cluster.upgrade() else { return };
        let (context, trouble) = (Arc::clone(&held.context), Arc::clone(&held.trouble));
        let asked = order(&held);
        drop(held);
        let read = read(&context, asked).await;
        let Some(held) = cluster.upgrade() else { return };
        let changed = match read {
            Some(holdings) => {
                known = true;
                held.place(&holdings)
            }
            None => {
                tracing::warn!("no node of the cluster says who holds which slots");
                false
            }
        };
        drop(held);
        pause = if changed { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        tokio::time::sleep(pause).await;
        if known {
            // Both ways lead to the next reading.
            let _ = tokio::time::timeout(EVERY, trouble.notified()).await;
        }
    }
}

/// Whom to ask, one after the other: the node that a MOVED named, then those that we are connected
/// to, then those that the settings name, then the rest.
fn order(cluster: &Cluster) -> Vec<Address> {
    let nodes = cluster.nodes();
    let connected = nodes.iter().filter(|node| node.is_connected());
    let mut order: Vec<Address> = Vec::with_capacity(nodes.len() + 1);
    let all = cluster
        .take_hint()
        .into_iter()
        .chain(connected.map(|node| node.address().clone()))
        .chain(cluster.context.config.addresses.iter().cloned())
        .chain(nodes.iter().map(|node| node.address().clone()));
    for address in all {
        if !order.contains(&address) {
            order.push(address);
        }
    }
    order
}

async fn read(context: &Context, asked: Vec<Address>) -> Option<Vec<SlotOwner>> {
    let auth = &context.config.auth;
    let tls = context.config.tls.is_some();
    for node in asked {
        let shards = context.ask(&node, auth, redis::cmd("CLUSTER").arg("SHARDS")).await;
        let error = match shards {
            Ok(reply) => match of_shards(&reply, &node, tls) {
                Some(holdings) => return Some(holdings),
                None => continue,
            },
            Err(error) => error,
        };
        // Only a server that answered can have refused the newer question.
        if error.is_io_error() {
            continue;
        }
        let slots = context.ask(&node, auth, redis::cmd("CLUSTER").arg("SLOTS")).await;
        if let Some(holdings) = slots.ok().and_then(|reply| of_slots(&reply, &node)) {
            return Some(holdings);
        }
    }
    None
}
