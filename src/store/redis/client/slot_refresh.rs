//! Background task that refreshes the slot table of a Redis Cluster.
//!
//! Not here: parsing the replies (`slot_table`), sending calls to the owners of their slots
//! (`cluster`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::client_context::{ClientContext, ConnectError};
use super::cluster::{Cluster, TableUpdate};
use super::config::Address;
use super::slot_table::{Membership, SlotOwner, parse_nodes, parse_shards, parse_slots};
use crate::domain::{FailureKind, SuppressedLines};

/// Interval between refreshes of the slot table while there are no failures or redirects.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum time between refreshes after the slot table has changed. Each refresh that leaves the
/// table unchanged doubles this time, up to [`REFRESH_PAUSE_MAX`], because an election takes
/// seconds and a hundred processes may query the same few nodes.
const REFRESH_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Minimum time between refreshes after several refreshes that left the slot table unchanged.
const REFRESH_PAUSE_MAX: Duration = Duration::from_millis(800);

/// Refreshes the slot table every [`REFRESH_INTERVAL`], and earlier after failures and redirects,
/// until the cluster is dropped.
pub(crate) async fn refresh_slot_table(cluster: Weak<Cluster>) {
    let mut pause = REFRESH_PAUSE_MIN;
    let mut known = false;
    // Addresses from the settings that were not compared with the slot table yet.
    let mut unverified: Option<Vec<Address>> = None;
    loop {
        let Some(held) = cluster.upgrade() else { return };
        let (context, refresh_needed) =
            (Arc::clone(&held.context), Arc::clone(&held.refresh_needed));
        let candidates = refresh_candidates(&held);
        drop(held);
        let changed = match refresh(&context, &cluster, candidates).await {
            Some(update) => {
                known = true;
                update == TableUpdate::Replaced
            }
            None => {
                if let Some(suppressed) = context.log_limiter.admit("no slot table", &"") {
                    tokio::spawn(log_missing_table(Arc::clone(&context), suppressed));
                }
                false
            }
        };
        if known {
            let addresses = unverified.get_or_insert_with(|| context.config.addresses.clone());
            verify_addresses(&context, &cluster, addresses).await;
        }
        pause = if changed { REFRESH_PAUSE_MIN } else { (pause * 2).min(REFRESH_PAUSE_MAX) };
        tokio::time::sleep(pause).await;
        if known {
            // The result does not matter: both a timeout and a notification lead to a refresh.
            let _ = tokio::time::timeout(REFRESH_INTERVAL, refresh_needed.notified()).await;
        }
    }
}

/// Logs that no node returned the slot table. Queries the first configured node to find the reason.
async fn log_missing_table(context: Arc<ClientContext>, suppressed: SuppressedLines) {
    let Some(node) = context.config.addresses.first() else { return };
    let auth = &context.config.auth;
    let reply = context.query(node, auth, redis::cmd("CLUSTER").arg("SLOTS")).await;
    let reason = match reply {
        Ok(_) => "the slot table is empty or incomplete".to_owned(),
        Err(error) => ConnectError::from(error).reason,
    };
    let advice = context.explain(node, FailureKind::NotConnected, auth, &reason).await;
    tracing::warn!(%node, advice, reason, suppressed, "no cluster node returned the slot table");
}

/// Queries one node after another until a slot table is accepted. Returns `None` if no table is
/// accepted.
///
/// The table of a different cluster is accepted only if every node of the current cluster is
/// disconnected and does not reply. In that case, the cluster has probably been recreated at the
/// same addresses.
async fn refresh(
    context: &ClientContext,
    cluster: &Weak<Cluster>,
    candidates: Vec<Address>,
) -> Option<TableUpdate> {
    let mut other_cluster = None;
    let mut is_present_alive = false;
    for node in candidates {
        // Before the table: if the epoch rises in between, the table is newer than it claims.
        let membership = query_membership(context, &node).await;
        let Some(owners) = query_owners(context, &node).await else { continue };
        let update = cluster.upgrade()?.update_table(&owners, membership.clone(), false);
        let limiter = &context.log_limiter;
        match update {
            TableUpdate::Replaced | TableUpdate::Unchanged => return Some(update),
            TableUpdate::Older => {
                is_present_alive = true;
                if let Some(suppressed) = limiter.admit("older table", &node) {
                    tracing::warn!(%node, suppressed, "a cluster node returned an older slot table");
                }
            }
            TableUpdate::OtherCluster => {
                other_cluster = other_cluster.or(Some((owners, membership)));
                if let Some(suppressed) = limiter.admit("other cluster", &node) {
                    tracing::warn!(%node, suppressed, "a node belongs to another Redis cluster");
                }
            }
        }
    }
    let cluster = cluster.upgrade()?;
    is_present_alive |= cluster.nodes().iter().any(|node| node.is_connected());
    let (owners, membership) = other_cluster.filter(|_| !is_present_alive)?;
    Some(cluster.update_table(&owners, membership, true))
}

/// Logs an error for each configured address that belongs to a different cluster than the slot
/// table. After a restart, a replica could use that cluster and count separately from the other
/// replicas. Keeps in `addresses` only those whose cluster could not be determined.
async fn verify_addresses(
    context: &ClientContext,
    cluster: &Weak<Cluster>,
    addresses: &mut Vec<Address>,
) {
    for node in std::mem::take(addresses) {
        match query_membership(context, &node).await {
            Some(membership) => {
                let Some(cluster) = cluster.upgrade() else { return };
                if cluster.is_other_cluster(&membership) {
                    tracing::error!(%node, "a configured address belongs to another Redis cluster");
                }
            }
            None => addresses.push(node),
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

/// Queries a node for the ids of all nodes of its cluster and their highest config epoch. Returns
/// `None` if the node does not reply or the ACL denies CLUSTER NODES.
async fn query_membership(context: &ClientContext, node: &Address) -> Option<Membership> {
    let auth = &context.config.auth;
    let reply = context.query(node, auth, redis::cmd("CLUSTER").arg("NODES")).await;
    parse_nodes(reply.ok()?)
}

/// Queries a node for the slot table. Returns `None` if the node returns no valid table.
async fn query_owners(context: &ClientContext, node: &Address) -> Option<Vec<SlotOwner>> {
    let auth = &context.config.auth;
    let tls = context.config.tls.is_some();
    match context.query(node, auth, redis::cmd("CLUSTER").arg("SHARDS")).await {
        Ok(reply) => parse_shards(&reply, node, tls),
        // An I/O error says nothing about support for CLUSTER SHARDS.
        Err(error) if error.is_io_error() => None,
        Err(_) => {
            let slots = context.query(node, auth, redis::cmd("CLUSTER").arg("SLOTS")).await;
            parse_slots(&slots.ok()?, node)
        }
    }
}
