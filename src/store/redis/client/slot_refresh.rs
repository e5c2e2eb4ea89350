//! Background task that refreshes the slot table of a Redis Cluster.
//!
//! Not here: parsing the replies (`slot_table`), sending calls by the table (`cluster`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::cluster::Cluster;
use super::config::Address;
use super::dialer::ClientContext;
use super::slot_table::{SlotOwner, parse_shards, parse_slots};

/// Interval between refreshes of the slot table while there are no failures or redirections.
const INTERVAL: Duration = Duration::from_secs(30);
/// Minimum time between refreshes, doubled each time the table stays the same. An election takes
/// seconds, and a hundred processes query the same few nodes.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Maximum of the minimum time between refreshes, to which it grows while the table stays the same.
const INTERVAL_MIN_UNCHANGED: Duration = Duration::from_millis(800);

/// Refreshes the slot table on request and every [`INTERVAL`], until the cluster is dropped.
pub(crate) async fn refresh_slot_table(cluster: Weak<Cluster>) {
    let mut pause = INTERVAL_MIN;
    let mut known = false;
    loop {
        let Some(held) = cluster.upgrade() else { return };
        let (context, refresh_needed) =
            (Arc::clone(&held.context), Arc::clone(&held.refresh_needed));
        let candidates = refresh_candidates(&held);
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
        pause = if changed { INTERVAL_MIN } else { (pause * 2).min(INTERVAL_MIN_UNCHANGED) };
        tokio::time::sleep(pause).await;
        if known {
            // The result does not matter: both a timeout and a notification lead to a refresh.
            let _ = tokio::time::timeout(INTERVAL, refresh_needed.notified()).await;
        }
    }
}

/// Returns the nodes to query, in order: the target of the last MOVED, nodes with an open
/// connection, addresses from the settings, all other nodes.
fn refresh_candidates(cluster: &Cluster) -> Vec<Address> {
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

/// Queries one node after another until one returns the slot table; `None` if none does.
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
        // An I/O error says nothing about support for CLUSTER SHARDS.
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
