//! Refreshes a cluster's slot table in the background.
//!
//! Not here: parsing the replies (`slot_table`), using the table (`cluster`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::cluster::Cluster;
use super::config::Address;
use super::dialer::ClientContext;
use super::slot_table::{SlotOwner, parse_shards, parse_slots};

/// Without failures. Until the next refresh, each call to a slot that moved unnoticed costs one
/// redirection.
const INTERVAL: Duration = Duration::from_secs(30);
/// The least time between refreshes; doubled while nothing changes, up to the second one. An
/// election takes seconds, and a hundred processes ask the same few nodes.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// Refreshes the table on request and every [`INTERVAL`], until the cluster is dropped.
pub(crate) async fn keep_fresh(cluster: Weak<Cluster>) {
    let mut pause = PAUSE;
    let mut known = false;
    loop {
        let Some(held) = cluster.upgrade() else { return };
        let (context, refresh_needed) =
            (Arc::clone(&held.context), Arc::clone(&held.refresh_needed));
        let candidates = candidates(&held);
        drop(held);
        let owners = query_owners(&context, candidates).await;
        let Some(held) = cluster.upgrade() else { return };
        let changed = match owners {
            Some(owners) => {
                known = true;
                held.update_table(&owners)
            }
            None => {
                tracing::warn!("no cluster node returned the slot table");
                false
            }
        };
        drop(held);
        pause = if changed { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        tokio::time::sleep(pause).await;
        if known {
            // Timeout or notification: either way it is time for the next refresh.
            let _ = tokio::time::timeout(INTERVAL, refresh_needed.notified()).await;
        }
    }
}

/// The nodes to ask, in order: the one that a MOVED named, those with an open connection, those in
/// the settings, the rest.
fn candidates(cluster: &Cluster) -> Vec<Address> {
    let nodes = cluster.nodes();
    let connected = nodes.iter().filter(|node| node.is_connected());
    let mut candidates: Vec<Address> = Vec::with_capacity(nodes.len() + 1);
    let all = cluster
        .take_refresh_hint()
        .into_iter()
        .chain(connected.map(|node| node.address().clone()))
        .chain(cluster.context.config.addresses.iter().cloned())
        .chain(nodes.iter().map(|node| node.address().clone()));
    for address in all {
        if !candidates.contains(&address) {
            candidates.push(address);
        }
    }
    candidates
}

/// Asks one node after the other until one returns the slot table.
async fn query_owners(context: &ClientContext, candidates: Vec<Address>) -> Option<Vec<SlotOwner>> {
    let auth = &context.config.auth;
    let tls = context.config.tls.is_some();
    for node in candidates {
        let shards = context.query(&node, auth, redis::cmd("CLUSTER").arg("SHARDS")).await;
        let error = match shards {
            Ok(reply) => match parse_shards(&reply, &node, tls) {
                Some(owners) => return Some(owners),
                None => continue,
            },
            Err(error) => error,
        };
        // Only a server that answered can be one that does not support CLUSTER SHARDS.
        if error.is_io_error() {
            continue;
        }
        let slots = context.query(&node, auth, redis::cmd("CLUSTER").arg("SLOTS")).await;
        if let Some(owners) = slots.ok().and_then(|reply| parse_slots(&reply, &node)) {
            return Some(owners);
        }
    }
    None
}
