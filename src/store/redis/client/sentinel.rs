//! Follows the master that sentinels name.
//!
//! Sentinels are asked whenever a connection is in trouble and every two seconds besides; that they have
//! agreed is checked at the node itself, by ROLE in every handshake (`dial`). A subscription to
//! their announcements would be a second way to learn the same a fraction of a second earlier: a
//! failover breaks the connections of the old master, and that is the announcement. Not here:
//! carrying items (`master`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use tokio::sync::Notify;

use super::config::{Address, Auth, TopologyConfig};
use super::dialer::Context;
use super::node::Node;
use super::single_master::Master;

/// Without trouble. A master that was cut off from its sentinels, but not from us, is left after
/// at most this and the failover itself; three small questions in that time cost nothing.
const EVERY: Duration = Duration::from_secs(2);
/// With trouble, at most so often: an election takes seconds.
const PAUSE: Duration = Duration::from_millis(100);

/// Keeps `master` at the node that the sentinels name, until nobody holds it any more.
pub(crate) async fn follow(context: Arc<Context>, master: Weak<Master>, trouble: Arc<Notify>) {
    let TopologyConfig::Sentinel { master: name, auth } = &context.config.topology else { return };
    let mut known: Option<Address> = None;
    loop {
        let named = ask_all(&context, auth, name).await;
        let Some(master) = master.upgrade() else { return };
        match named {
            Some(address) if known.as_ref() != Some(&address) => {
                tracing::info!(%address, master = name, "the sentinels name a new master");
                master.replace(Node::open(&context, address.clone(), &trouble));
                known = Some(address);
            }
            Some(_) => {}
            None if known.is_none() => {
                tracing::warn!(master = name, "no sentinel names a master");
            }
            None => {}
        }
        drop(master);
        tokio::time::sleep(PAUSE).await;
        // Both ways lead to the next question.
        let _ = tokio::time::timeout(EVERY, trouble.notified()).await;
    }
}

/// What most sentinels say that answer within the connect timeout. During an election they differ:
/// the majority is right first.
async fn ask_all(context: &Context, auth: &Auth, name: &str) -> Option<Address> {
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let sentinels = &context.config.addresses;
    let mut asked: FuturesUnordered<_> =
        sentinels.iter().map(|sentinel| context.ask(sentinel, auth, &question)).collect();
    let mut votes: Vec<(Address, usize)> = Vec::with_capacity(sentinels.len());
    while let Some(answer) = asked.next().await {
        let Some(address) = answer.ok().as_ref().and_then(address) else { continue };
        let count = match votes.iter_mut().find(|(held, _)| *held == address) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                votes.push((address.clone(), 1));
                1
            }
        };
        if count > sentinels.len() / 2 {
            return Some(address);
        }
    }
    votes.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address)
}

fn address(answer: &Value) -> Option<Address> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else { return None };
    let host = String::from_utf8(host.clone()).ok()?;
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Address::Tcp(host, port))
}
