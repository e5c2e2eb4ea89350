//! Asks every node from time to time what it says of itself, in the background: no call waits for
//! it, and where the servers do not permit it nothing but the figures is missing.
//!
//! Not here: what the answer says (`vitals`), showing it (`telemetry`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{RedisError, ServerErrorKind, Value};

use super::dialer::Context;
use super::info::NodeInfo;
use super::node::Node;
use super::topology::Topology;

/// Before the first answer: a node is connected within moments of the start.
const FIRST: Duration = Duration::from_millis(500);

/// Asks until nobody holds the connections any more, `every` so often.
pub(crate) async fn keep_count(way: Weak<Topology>, context: Arc<Context>, every: Duration) {
    let mut denied = false;
    let mut heard = false;
    loop {
        tokio::time::sleep(if heard { every } else { FIRST.min(every) }).await;
        let Some(nodes) = way.upgrade().map(|way| way.nodes()) else { return };
        for node in nodes {
            // One that is not connected would only make us wait.
            let said = if node.is_connected() { Some(ask(&context, &node).await) } else { None };
            match said {
                Some(Ok(vitals)) => {
                    (denied, heard) = (false, true);
                    node.say(Some(vitals));
                }
                Some(Err(Silence::Denied)) => {
                    heard = true;
                    node.say(None);
                    if !denied {
                        denied = true;
                        let (node, permission) = (node.address(), "+info");
                        tracing::warn!(%node, permission, "Redis keeps its own figures from us");
                    }
                }
                // Why is told by the connections.
                Some(Err(Silence::Failed)) | None => node.say(None),
            }
        }
    }
}

/// Why a node says nothing of itself.
enum Silence {
    /// We may not ask.
    Denied,
    /// It did not answer.
    Failed,
}

async fn ask(context: &Context, node: &Node) -> Result<NodeInfo, Silence> {
    let config = &context.config;
    // One word, because servers before 7.0 take no more; commandstats are only in all.
    let answer = context.ask(node.address(), &config.auth, redis::cmd("INFO").arg("all")).await;
    match answer.map_err(|error| silence(&error))? {
        Value::BulkString(text) => Ok(NodeInfo::of(&String::from_utf8_lossy(&text), config.db)),
        Value::VerbatimString { text, .. } => Ok(NodeInfo::of(&text, config.db)),
        _ => Err(Silence::Failed),
    }
}

fn silence(error: &RedisError) -> Silence {
    match error.kind() {
        redis::ErrorKind::Server(ServerErrorKind::NoPerm) => Silence::Denied,
        _ => Silence::Failed,
    }
}
