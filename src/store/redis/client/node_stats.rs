//! Statistics per Redis node, as plain atomics.
//!
//! Not here: the metrics' names and labels (`app::wiring::redis_metrics`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error_reply::Redirect;
pub use super::info::NodeInfo;
use crate::domain::{BatchSizeHistogram, DurationHistogram, FailureKind};

/// Counter or gauge, updated with relaxed atomics.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount` to the counter.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Subtracts `amount` from the gauge.
    pub(crate) fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// Sets the gauge to `number` and returns its previous value.
    pub(crate) fn swap(&self, number: u64) -> u64 {
        self.0.swap(number, Ordering::Relaxed)
    }

    /// Returns the value of the counter or gauge.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Statistics of the connections to one Redis node: counters since the client was opened, except
/// for the fields marked as gauges.
#[derive(Debug, Default)]
pub struct NodeStats {
    /// Number of open connections (gauge).
    pub connected: Counter,
    /// Number of connections opened.
    pub connects: Counter,
    /// Number of failed connection attempts.
    pub connect_failures: Counter,
    /// Number of connections that were lost, or that Tidegate closed after an error.
    pub losses: Counter,
    /// Number of writes to a socket. Each write is a pipeline of all commands queued since the
    /// previous one.
    pub writes: Counter,
    /// Number of calls, or parts of calls, written to a socket.
    pub calls: Counter,
    /// Number of calls that got a reply, including error replies.
    pub(crate) answers: Counter,
    /// Number of calls not written because their callers had stopped waiting.
    pub abandoned: Counter,
    /// Number of calls rejected because no connection was open.
    pub not_connected: Counter,
    /// Number of calls rejected because the queues were full.
    pub queue_full: Counter,
    /// Number of calls rejected because their replies were not expected to arrive before their
    /// deadlines.
    pub shed: Counter,
    /// Number of calls rejected by the circuit breaker.
    pub breaker_rejected: Counter,
    /// Number of times that the circuit breaker opened.
    pub breaker_opened: Counter,
    /// Whether the circuit breaker is open (gauge: 0 or 1).
    pub breaker_open: Counter,
    /// Number of NOSCRIPT replies. The script is then loaded, and the call sent again, up to three
    /// times.
    pub noscript: Counter,
    /// Number of MOVED replies to script calls.
    pub moved: Counter,
    /// Number of ASK replies to script calls.
    pub ask: Counter,
    /// Number of TRYAGAIN replies to script calls.
    pub tryagain: Counter,
    /// Number of other error replies to script calls and probes, by their kind.
    errors: [Counter; FailureKind::ALL.len()],
    /// Number of connections closed because their oldest command got no reply within the reply
    /// timeout.
    pub timeouts: Counter,
    /// Number of calls that the server may or may not have executed, and that are therefore never
    /// sent again.
    pub unknown: Counter,
    /// Number of connections on which another replica's key secret or key format differed from
    /// ours.
    pub meta_mismatches: Counter,
    /// Histogram of the time that callers waited for a reply, in microseconds, including the time
    /// in the queue. For a caller that timed out, the time until its timeout is recorded.
    pub wait_times: DurationHistogram,
    /// Histogram of the time from a write to the last of its replies, in microseconds, including
    /// the network and the execution of the scripts.
    pub round_trips: DurationHistogram,
    /// Histogram of the number of calls per write.
    pub write_sizes: BatchSizeHistogram,
    /// Whether the latest connection attempt ended with an error reply (gauge: 0 or 1).
    pub(crate) is_refusing: Counter,
    /// Hash slot that the node owned last, plus 1 (gauge). 0 if it never owned one, and `u64::MAX` if
    /// the slot is unknown.
    pub(crate) owned_slot: Counter,
    /// Whether the node may evict counters, as of the most recent connection (gauge: 0 or 1).
    pub may_evict: Counter,
}

impl NodeStats {
    /// Counts a failure, of which [`errors`](Self::errors) reports the error replies.
    pub(crate) fn record_error(&self, kind: FailureKind) {
        self.errors[kind as usize].add(1);
    }

    /// Returns the kinds of error replies, each with the number of such replies.
    pub fn errors(&self) -> impl Iterator<Item = (FailureKind, u64)> {
        let counts = FailureKind::ALL.iter().copied().zip(&self.errors);
        counts.filter(|(kind, _)| kind.is_error_reply()).map(|(kind, count)| (kind, count.get()))
    }

    /// Returns a hash slot that the node owns, as far as it is known.
    pub(crate) fn owned_slot(&self) -> Option<u16> {
        u16::try_from(self.owned_slot.get().checked_sub(1)?).ok()
    }

    /// Counts a reply that redirects a command.
    pub(super) fn record_redirect(&self, redirect: &Redirect) {
        match redirect {
            Redirect::Moved(_) => self.moved.add(1),
            Redirect::Ask(_) => self.ask.add(1),
            Redirect::TryAgain => self.tryagain.add(1),
        }
    }
}

/// Report on one Redis node, for metrics and operators.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// Address that this process connects to.
    pub address: String,
    /// Live statistics of the node.
    pub stats: Arc<NodeStats>,
    /// Result of the last INFO poll; `None` if INFO could not be read or has not been polled yet.
    pub info: Option<Arc<NodeInfo>>,
}
