//! Background task that polls INFO on every node. If the ACL does not permit INFO, only the metrics
//! about the server are missing.
//!
//! Not here: parsing the reply (`info`), the metrics (`app::wiring::redis_metrics`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::client_context::{ClientContext, ConnectError};
use super::info::NodeInfo;
use super::node::Node;
use super::topology::Topology;
use crate::domain::FailureKind;

/// Interval between INFO polls until the first reply from any node. It is short because the nodes
/// are usually connected soon after startup.
const INTERVAL_AT_START: Duration = Duration::from_millis(500);

/// Polls INFO on every node until the client is dropped.
pub(crate) async fn poll_info(
    topology: Weak<Topology>,
    context: Arc<ClientContext>,
    interval: Duration,
) {
    let mut denied = false;
    let mut answered = false;
    loop {
        tokio::time::sleep(if answered { interval } else { INTERVAL_AT_START.min(interval) }).await;
        let Some(nodes) = topology.upgrade().map(|topology| topology.nodes()) else { return };
        for node in nodes {
            // Querying a node that cannot be reached would delay the others.
            let reply =
                if node.is_connected() { Some(query_info(&context, &node).await) } else { None };
            match reply {
                Some(Ok(info)) => {
                    (denied, answered) = (false, true);
                    node.set_info(Some(info));
                }
                Some(Err(error)) if error.kind == FailureKind::Denied => {
                    answered = true;
                    node.set_info(None);
                    if !denied {
                        denied = true;
                        let (node, permission) = (node.address(), "+info");
                        tracing::warn!(%node, permission, "Redis denied INFO");
                    }
                }
                // The connections log why the node cannot be reached.
                Some(Err(_)) | None => node.set_info(None),
            }
        }
    }
}

async fn query_info(context: &ClientContext, node: &Node) -> Result<NodeInfo, ConnectError> {
    let config = &context.config;
    // Servers before 7.0 accept a single section, and only `all` contains commandstats.
    let reply = context.query(node.address(), &config.auth, redis::cmd("INFO").arg("all")).await?;
    Ok(NodeInfo::parse(&redis::from_redis_value::<String>(reply).unwrap_or_default(), config.db))
}
