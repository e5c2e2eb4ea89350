//! Counters of the connections on the gRPC port, read by telemetry.
//!
//! Not here: metrics of decisions, which the observer records.

use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Connection metrics of the gRPC port. All are counters since the process started, except for the
/// gauge `open`.
#[derive(Debug, Default)]
pub struct ConnectionStats {
    /// Number of connections that are open now (gauge).
    pub open: AtomicUsize,
    /// Number of connections that were accepted and passed to a worker.
    pub accepted: AtomicU64,
    /// Number of connections closed immediately after accept, because the worker's backlog was
    /// full.
    pub refused: AtomicU64,
    /// Number of idle connections closed to make room for new ones, because the maximum number of
    /// connections was open.
    pub evicted: AtomicU64,
    /// Number of failed `accept` system calls, for example because the process had no free file
    /// descriptors.
    pub accepts_failed: AtomicU64,
    /// Number of TLS handshakes that failed or timed out.
    pub handshakes_failed: AtomicU64,
    /// Number of connections closed because the client did not send a valid HTTP/2 preface in time.
    pub prefaces_failed: AtomicU64,
    /// Number of calls rejected because their request was not received completely in time.
    pub receive_timeouts: AtomicU64,
    /// Number of calls reset because the memory held for callers exceeded its budget.
    pub calls_over_budget: AtomicU64,
    /// Number of connections closed because the client did not read an answer for 5 s, or because
    /// unread answers exceeded the memory budget.
    pub connections_blocked: AtomicU64,
    /// Number of calls rejected because they had waited for half of their deadline before they were
    /// started, or refused because callers gave up under overload.
    pub overload_rejections: AtomicU64,
    /// Number of connections that ended with a protocol error or an I/O error.
    pub connections_broken: AtomicU64,
}
