//! What the task of one connection holds.
//!
//! Not here: what the task does (`connection`).

use std::sync::Arc;

use tokio::sync::mpsc;

use super::connection_load::LoadMeter;
use super::dialer::Dialer;
use super::node_state::{ConnectionStatus, NodeState};
use super::pending_command::Batch;
use crate::domain::Bounds;

/// Maximum number of calls in the queue of a connection: four full batches of `tidegate.v1.Limits`,
/// because the calls of a batch are queued all at once. This limit only bounds memory. The load
/// estimate (`connection_load`) decides whether a call can get its reply in time.
pub(crate) const QUEUE_MAX: usize = 4 * Bounds::DEFAULT.batch_requests_max;

/// State of the task that opens, serves, and reopens one connection.
pub(crate) struct Connection {
    pub(crate) node: Arc<NodeState>,
    pub(crate) status: Arc<ConnectionStatus>,
    pub(crate) dialer: Dialer,
    pub(crate) queue: mpsc::Receiver<Batch>,
    pub(crate) meter: LoadMeter,
}

impl Connection {
    pub(super) fn new(
        node: &Arc<NodeState>,
        status: &Arc<ConnectionStatus>,
        queue: mpsc::Receiver<Batch>,
    ) -> Connection {
        let (node, status) = (Arc::clone(node), Arc::clone(status));
        let dialer =
            Dialer { node: Arc::clone(&node), status: Arc::clone(&status), password: None };
        Connection { node, status, dialer, queue, meter: LoadMeter::default() }
    }
}

/// Reason why a connection stopped sending commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The client no longer uses the node, so the task does not reconnect.
    NodeClosed,
    /// The connection broke, or its oldest command got no reply within the reply timeout.
    Lost,
    /// The server replied READONLY, because it has become a replica.
    Demoted,
    /// The circuit breaker opened. The connection stays open for PINGs.
    BreakerOpened,
}

impl CloseReason {
    /// Returns the text for the log.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            CloseReason::NodeClosed => "Tidegate no longer uses the node",
            CloseReason::Lost => {
                "closed by Redis or the network, or no reply within the reply timeout"
            }
            CloseReason::Demoted => "the node has become a replica",
            CloseReason::BreakerOpened => "the circuit breaker opened",
        }
    }
}
