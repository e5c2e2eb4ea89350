//! What the task of one connection holds.
//!
//! Not here: what the task does (`connection`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::{Notify, mpsc};

use super::connection_load::{ConnectionLoad, LoadMeter};
use super::dialer::{ConnectionSignal, Dialer};
use super::node_breaker::NodeBreaker;
use super::node_stats::NodeStats;
use super::pending_command::Batch;
use crate::domain::Bounds;

/// Maximum number of calls in the queue of a connection: four full batches of `tidegate.v1.Limits`,
/// because the calls of a batch are queued all at once. This limit only bounds memory. The load
/// estimate (`connection_load`) decides whether a call can get its reply in time.
pub(crate) const QUEUE_MAX: usize = 4 * Bounds::DEFAULT.batch_requests_max;

/// State of the task that opens, serves, and reopens one connection.
pub(crate) struct Connection {
    pub(crate) dialer: Dialer,
    pub(crate) queue: mpsc::Receiver<Batch>,
    /// Signal that wakes the task when the connection breaks or the circuit breaker opens.
    pub(crate) signal: Arc<ConnectionSignal>,
    /// Whether the connection is open and accepts commands.
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) load: Arc<ConnectionLoad>,
    pub(crate) meter: LoadMeter,
    pub(crate) stats: Arc<NodeStats>,
    /// Notification that the connection has failed or that an error reply suggests a change of
    /// topology.
    pub(crate) refresh_needed: Arc<Notify>,
    /// Circuit breaker of the node, which also provides the clock. `None` disables the breaker and
    /// all measurements.
    pub(crate) breaker: Option<Arc<NodeBreaker>>,
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
