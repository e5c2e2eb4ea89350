//! What happened on the connections, counted per node as plain atomics.
//!
//! Not here: names and labels of metrics (`telemetry` reads these and gives them theirs).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use super::circuit_breaker::State;
pub use super::info::NodeInfo;
use crate::domain::{Sizes, Waits};

/// One number that only grows (or, for gauges, moves).
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// One less: for the gauge among them.
    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    /// Another number; the one that it was.
    pub(crate) fn swap(&self, number: u64) -> u64 {
        self.0.swap(number, Ordering::Relaxed)
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What happened on one node's connections since they were opened.
#[derive(Debug, Default)]
pub struct NodeStats {
    /// Connections that are connected now (a gauge).
    pub connected: Counter,
    /// Connections made.
    pub connects: Counter,
    /// Dials that failed.
    pub dial_failures: Counter,
    /// Connections that were lost or dropped.
    pub losses: Counter,
    /// Writes: one each for what had queued since the last.
    pub pipelines: Counter,
    /// ScriptCalls written.
    pub items: Counter,
    /// ScriptCalls that were not written because their caller had gone.
    pub stale: Counter,
    /// ScriptCalls that failed at once because no connection was connected.
    pub not_connected: Counter,
    /// ScriptCalls that failed at once because the queue was full.
    pub queue_full: Counter,
    /// ScriptCalls that failed at once because the breaker was open.
    pub rejected: Counter,
    /// How often the circuit breaker opened.
    pub opened: Counter,
    /// The breaker is open or half-open now (a gauge: 0 or 1).
    pub open_now: Counter,
    /// ScriptCalls answered with NOSCRIPT and sent again after a SCRIPT LOAD.
    pub noscript: Counter,
    /// ScriptCalls answered with MOVED.
    pub moved: Counter,
    /// ScriptCalls answered with ASK.
    pub ask: Counter,
    /// ScriptCalls answered with TRYAGAIN.
    pub tryagain: Counter,
    /// ScriptCalls answered with any other error.
    pub refused: Counter,
    /// Connections dropped because their oldest reply was overdue.
    pub timeouts: Counter,
    /// ScriptCalls whose outcome nobody knows; never sent again.
    pub unknown: Counter,
    /// Connections that found another replica's secret or format: counters are not shared.
    pub meta_differs: Counter,
    /// How long callers waited for an item, the queue included; for one who went away sooner, how
    /// long until then.
    pub waits: Waits,
    /// How long from a write to the last of its replies: the network and the scripts.
    pub round_trips: Waits,
    /// How many items each write carried.
    pub sizes: Sizes,
    /// The node may evict counters, said the latest connection to it (a gauge: 0 or 1).
    pub may_evict: Counter,
}

/// The counters of one node, with its address.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// Where the node listens, as the process dials it.
    pub address: String,
    /// Its counters, live.
    pub counters: Arc<NodeStats>,
    /// What its breaker does; `None` where it has none.
    pub breaker: Option<State>,
    /// What the server says of itself; `None` until it has said anything.
    pub vitals: Option<Arc<NodeInfo>>,
}
