//! Sentinel topology: connects to the master that the sentinels report.
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

use super::client_context::{ClientContext, ConnectError};
use super::config::{Address, Auth, TopologyConfig};
use super::loss_detector::NEW_MASTER;
use super::node::Node;
use super::single_master::SingleMaster;
use crate::domain::{FailureKind, SuppressedLines};

/// Interval between queries of the sentinels while no connection fails. If a network partition
/// separates the master from the sentinels but not from Tidegate, Tidegate switches to the new
/// master at most this long after the failover.
const QUERY_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum time between queries of the sentinels. More frequent queries would not help, because a
/// failover takes seconds.
const QUERY_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Number of consecutive queries of the sentinels, made while Tidegate has no connection to the
/// master, after which a plurality of their votes is enough for a new master. Until then, a new
/// master needs a majority. While the master is unreachable, queries are 0.1 s to 2 s apart.
const QUERIES_WITHOUT_MASTER: u32 = 5;

/// Replaces the node of `master` whenever the sentinels report a new master, until `master` is
/// dropped.
pub(crate) async fn follow_master(
    context: Arc<ClientContext>,
    master: Weak<SingleMaster>,
    refresh_needed: Arc<Notify>,
) {
    let TopologyConfig::Sentinel { master: name, auth } = &context.config.topology else { return };
    let mut known: Option<Address> = None;
    let mut without_master = 0;
    loop {
        let votes = query_sentinels(&context, auth, name).await;
        let Some(master) = master.upgrade() else { return };
        let is_connected = master.node().is_some_and(|node| node.is_connected());
        without_master = if is_connected { 0 } else { without_master + 1 };
        let needs_majority = known.is_some() && without_master < QUERIES_WITHOUT_MASTER;
        match elect(&votes, context.config.addresses.len(), known.as_ref(), needs_majority) {
            Some(address) if known.as_ref() != Some(address) => {
                tracing::info!(%address, master = name, "the sentinels name a new master");
                if known.is_some() {
                    context.record_loss(address, NEW_MASTER);
                }
                master.replace(Node::open(&context, address.clone(), &refresh_needed, None));
                (known, without_master) = (Some(address.clone()), 0);
            }
            None if known.is_none() => {
                if let Some(suppressed) = context.log_limiter.admit("no master", name) {
                    tokio::spawn(log_missing_master(Arc::clone(&context), suppressed));
                }
            }
            Some(_) | None => {}
        }
        drop(master);
        tokio::time::sleep(QUERY_INTERVAL_MIN).await;
        // The result does not matter: both a timeout and a notification lead to the next query.
        let _ = tokio::time::timeout(QUERY_INTERVAL, refresh_needed.notified()).await;
    }
}

/// Logs that no sentinel reports a master. Queries the first configured sentinel to find the
/// reason.
async fn log_missing_master(context: Arc<ClientContext>, suppressed: SuppressedLines) {
    let TopologyConfig::Sentinel { master, auth } = &context.config.topology else { return };
    let Some(node) = context.config.addresses.first() else { return };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let reason = match context.query(node, auth, &command).await {
        Ok(_) => format!("the sentinel knows no master {master:?}"),
        Err(error) => ConnectError::from(error).reason,
    };
    let advice = context.explain(node, FailureKind::NotConnected, auth, &reason).await;
    tracing::warn!(master, %node, advice, reason, suppressed, "no sentinel names a master");
}

/// Votes of the sentinels: each address reported for the master, with the number of sentinels that
/// reported it.
type Votes = Vec<(Address, usize)>;

/// Returns the address of the master to use, which may be the known one. Returns `None` to change
/// nothing.
///
/// A reply can be stale if the sentinel is cut off from the others or a failover is in progress.
/// The new master therefore needs the votes of a majority of the configured sentinels, even if some
/// do not reply. Without a majority, the known master stays. If no master is known, or none has
/// been connected for a while (`needs_majority` is false), the address with the most votes wins,
/// and the known master wins a tie.
fn elect<'v>(
    votes: &'v Votes,
    sentinels: usize,
    known: Option<&Address>,
    needs_majority: bool,
) -> Option<&'v Address> {
    let most = |(address, count): &&(Address, usize)| (*count, Some(address) == known);
    let (address, count) = votes.iter().max_by_key(most)?;
    (*count > sentinels / 2 || !needs_majority).then_some(address)
}

/// Queries all sentinels for the master's address and counts their votes. Stops when a majority
/// agrees; otherwise waits for each sentinel up to the connect timeout.
async fn query_sentinels(context: &ClientContext, auth: &Auth, name: &str) -> Votes {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let sentinels = &context.config.addresses;
    let mut queries: FuturesUnordered<_> =
        sentinels.iter().map(|sentinel| context.query(sentinel, auth, &command)).collect();
    let mut votes = Votes::new();
    while let Some(reply) = queries.next().await {
        let Some(address) = reply.ok().and_then(master_address) else { continue };
        let at = votes.iter().position(|(named, _)| *named == address).unwrap_or(votes.len());
        if at == votes.len() {
            votes.push((address, 0));
        }
        votes[at].1 += 1;
        if votes[at].1 > sentinels.len() / 2 {
            break;
        }
    }
    votes
}

/// Parses a reply to SENTINEL GET-MASTER-ADDR-BY-NAME. Returns `None` if the sentinel does not
/// monitor the master or the reply is malformed.
fn master_address(reply: Value) -> Option<Address> {
    let (host, port): (String, u16) = redis::from_redis_value(reply).ok()?;
    (!host.is_empty() && port != 0).then_some(Address::Tcp(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(port: u16) -> Address {
        Address::Tcp("10.0.0.1".into(), port)
    }

    fn elected(votes: &[(u16, usize)], sentinels: usize, connected: bool) -> Option<u16> {
        let votes = votes.iter().map(|(port, count)| (master(*port), *count)).collect();
        let elected = elect(&votes, sentinels, Some(&master(1)), connected);
        elected.map(|address| if *address == master(1) { 1 } else { 2 })
    }

    #[test]
    fn only_a_majority_of_the_configured_sentinels_replaces_a_connected_master() {
        assert_eq!(elected(&[(2, 2)], 3, true), Some(2));
        assert_eq!(elected(&[(2, 1)], 3, true), None, "one stale sentinel alone");
        assert_eq!(elected(&[(2, 1), (1, 1)], 3, true), None, "one away, two disagree");
        assert_eq!(elected(&[(2, 2)], 4, true), None, "half is no majority");
        assert_eq!(elected(&[(2, 1)], 1, true), Some(2), "a single sentinel, or a service name");
        assert_eq!(elected(&[], 3, true), None);
    }

    #[test]
    fn without_a_master_the_most_votes_decide_and_the_known_one_wins_a_tie() {
        assert_eq!(elected(&[(2, 1)], 3, false), Some(2));
        assert_eq!(elected(&[(1, 1), (2, 1)], 3, false), Some(1));
        assert_eq!(elected(&[(2, 1), (1, 1)], 3, false), Some(1));
    }

    #[test]
    fn a_reply_without_a_usable_address_is_no_vote() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = |host, port| Value::Array(vec![bulk(host), bulk(port)]);
        let expected = Address::Tcp("10.0.0.1".into(), 6379);
        assert_eq!(master_address(reply("10.0.0.1", "6379")), Some(expected));
        for (host, port) in [("", "6379"), ("10.0.0.1", "0"), ("10.0.0.1", "65536")] {
            assert_eq!(master_address(reply(host, port)), None, "{host}:{port}");
        }
        assert_eq!(master_address(Value::Nil), None, "the sentinel does not know the master");
    }
}
