//! Statistics per Redis node, as plain atomics.
//!
//! Not here: the metrics' names and labels (`app::wiring::redis_metrics`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use super::circuit_breaker::BreakerState;
pub use super::info::NodeInfo;
use crate::domain::{DurationHistogram, SizeHistogram};

/// Counter, or gauge if the field's comment says so.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `more` to the value.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Subtracts `less` from the value. Gauges only.
    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    /// Replaces the value and returns the previous one. Gauges only.
    pub(crate) fn swap(&self, number: u64) -> u64 {
        self.0.swap(number, Ordering::Relaxed)
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Statistics about the connections to one Redis node since the client was opened.
#[derive(Debug, Default)]
pub struct NodeStats {
    /// Open connections (gauge).
    pub connected: Counter,
    /// Connections opened.
    pub connects: Counter,
    /// Failed connection attempts.
    pub connect_failures: Counter,
    /// Connections lost, or closed by us after an error.
    pub losses: Counter,
    /// Writes to a socket; each is a pipeline of all commands queued since the previous one.
    pub writes: Counter,
    /// Script calls written to a socket.
    pub script_calls: Counter,
    /// Script calls not written because their callers had stopped waiting.
    pub abandoned: Counter,
    /// Script calls rejected because no connection was open.
    pub not_connected: Counter,
    /// Script calls rejected because the queue was full.
    pub queue_full: Counter,
    /// Script calls rejected by the circuit breaker.
    pub breaker_rejected: Counter,
    /// Number of times that the circuit breaker opened.
    pub breaker_opened: Counter,
    /// Whether the circuit breaker is open or half-open (gauge: 0 or 1).
    pub breaker_open: Counter,
    /// Script calls answered with NOSCRIPT and sent again after a SCRIPT LOAD.
    pub noscript: Counter,
    /// Script calls answered with MOVED.
    pub moved: Counter,
    /// Script calls answered with ASK.
    pub ask: Counter,
    /// Script calls answered with TRYAGAIN.
    pub tryagain: Counter,
    /// Script calls answered with any other error.
    pub errors: Counter,
    /// Connections dropped because their oldest reply was overdue.
    pub timeouts: Counter,
    /// Script calls with an unknown outcome, which are never sent again.
    pub unknown: Counter,
    /// Connections on which the key secret or key format of another replica differed from ours.
    pub meta_differs: Counter,
    /// Time that callers waited for a script call, time in the queue included. A caller that timed
    /// out counts with the time until its timeout.
    pub wait_times: DurationHistogram,
    /// Time from a write to the last of its replies, in microseconds: network and scripts.
    pub round_trips: DurationHistogram,
    /// Script calls per write.
    pub write_sizes: SizeHistogram,
    /// Whether the node may evict counters, as of the most recent connection (gauge: 0 or 1).
    pub may_evict: Counter,
}

/// Address, statistics, and state of one Redis node.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// Address that this process connects to.
    pub address: String,
    /// Live statistics.
    pub stats: Arc<NodeStats>,
    /// State of the circuit breaker; `None` if the node has none.
    pub breaker: Option<BreakerState>,
    /// Result of the last INFO poll; `None` if INFO has not been read.
    pub info: Option<Arc<NodeInfo>>,
}
