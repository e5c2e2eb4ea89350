//! Statistics of the connections to each node, as plain atomics.
//!
//! Not here: the metrics' names and labels (`app::wiring::redis_metrics`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use super::circuit_breaker::BreakerState;
pub use super::info::NodeInfo;
use crate::domain::{DurationHistogram, SizeHistogram};

/// A number that only grows or, as a gauge, goes up and down.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Subtracts from it. Gauges only.
    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    /// Replaces it and returns the former value. Gauges only.
    pub(crate) fn swap(&self, number: u64) -> u64 {
        self.0.swap(number, Ordering::Relaxed)
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Statistics of the connections to one node since the client was opened.
#[derive(Debug, Default)]
pub struct NodeStats {
    /// Open connections (gauge).
    pub connected: Counter,
    /// Connections opened.
    pub connects: Counter,
    /// Failed connection attempts.
    pub connect_failures: Counter,
    /// Connections lost or dropped.
    pub losses: Counter,
    /// Writes, each one pipeline of what had queued since the last.
    pub writes: Counter,
    /// Script calls written.
    pub script_calls: Counter,
    /// Script calls not written because their callers had stopped waiting.
    pub abandoned: Counter,
    /// Script calls rejected because no connection was open.
    pub not_connected: Counter,
    /// Script calls rejected because the queue was full.
    pub queue_full: Counter,
    /// Script calls rejected by the circuit breaker.
    pub breaker_rejected: Counter,
    /// How often the circuit breaker opened.
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
    /// Connections on which another replica's key secret or format was found.
    pub meta_differs: Counter,
    /// How long callers waited for a script call, time in the queue included. For a caller who
    /// gave up: how long until then.
    pub wait_times: DurationHistogram,
    /// Time from a write to the last of its replies: network and scripts.
    pub round_trips: DurationHistogram,
    /// Script calls per write.
    pub write_sizes: SizeHistogram,
    /// Whether the node may evict counters, as of the latest connection (gauge: 0 or 1).
    pub may_evict: Counter,
}

/// A node's address, statistics and state.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// The address that this process connects to.
    pub address: String,
    /// Its statistics, live.
    pub stats: Arc<NodeStats>,
    /// The state of its circuit breaker; `None` if it has none.
    pub breaker: Option<BreakerState>,
    /// What INFO reported last; `None` before the first answer.
    pub info: Option<Arc<NodeInfo>>,
}
