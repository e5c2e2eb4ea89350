//! Sentinel topology: connects to the master that the sentinels name.
//!
//! The sentinels are queried after every connection failure and every two seconds. Each handshake
//! then verifies the node's role with ROLE (`dialer`). There is no subscription to
//! `+switch-master`: that second mechanism would be at best a fraction of a second faster, because
//! a failover breaks the connections to the old master anyway. Not here: sending script calls
//! (`single_master`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use tokio::sync::Notify;

use super::config::{Address, Auth, TopologyConfig};
use super::dialer::ClientContext;
use super::node::Node;
use super::single_master::SingleMaster;

/// Interval between queries of the sentinels while no connection fails. If a network partition
/// separates the master from the sentinels but not from us, we leave the old master at most this
/// long after the failover.
const INTERVAL: Duration = Duration::from_secs(2);
/// Minimum time between queries of the sentinels. More frequent queries would not help, because an
/// election takes seconds.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Replaces the node of `master` whenever the sentinels name a new master, until `master` is
/// dropped.
pub(crate) async fn follow_master(
    context: Arc<ClientContext>,
    master: Weak<SingleMaster>,
    refresh_needed: Arc<Notify>,
) {
    let TopologyConfig::Sentinel { master: name, auth } = &context.config.topology else { return };
    let mut known: Option<Address> = None;
    loop {
        let named = query_sentinels(&context, auth, name).await;
        let Some(master) = master.upgrade() else { return };
        match named {
            Some(address) if known.as_ref() != Some(&address) => {
                tracing::info!(%address, master = name, "the sentinels name a new master");
                master.replace(Node::open(&context, address.clone(), &refresh_needed));
                known = Some(address);
            }
            None if known.is_none() => {
                tracing::warn!(master = name, "no sentinel names a master");
            }
            Some(_) | None => {}
        }
        drop(master);
        tokio::time::sleep(INTERVAL_MIN).await;
        // The result does not matter: both a timeout and a notification lead to the next query.
        let _ = tokio::time::timeout(INTERVAL, refresh_needed.notified()).await;
    }
}

/// Returns the master named by most of the sentinels that answer within the connect timeout,
/// because sentinels may disagree during an election.
async fn query_sentinels(context: &ClientContext, auth: &Auth, name: &str) -> Option<Address> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let sentinels = &context.config.addresses;
    let mut queries: FuturesUnordered<_> =
        sentinels.iter().map(|sentinel| context.query(sentinel, auth, &command)).collect();
    let mut votes: Vec<(Address, usize)> = Vec::with_capacity(sentinels.len());
    while let Some(reply) = queries.next().await {
        let Some(address) = reply.ok().as_ref().and_then(master_address) else { continue };
        let at = votes.iter().position(|(named, _)| *named == address).unwrap_or(votes.len());
        if at == votes.len() {
            votes.push((address, 0));
        }
        votes[at].1 += 1;
        if votes[at].1 > sentinels.len() / 2 {
            return Some(votes.swap_remove(at).0);
        }
    }
    votes.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address)
}

/// Parses a reply to SENTINEL GET-MASTER-ADDR-BY-NAME.
fn master_address(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else { return None };
    let host = String::from_utf8(host.clone()).ok()?;
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Address::Tcp(host, port))
}
