//! Counters of the connections on the gRPC port, read by telemetry.
//!
//! Not here: decisions, which go to the observer.

use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Counters since the process started; `open` is a gauge.
#[derive(Debug, Default)]
pub struct ConnectionStats {
    /// Connections that are open now.
    pub open: AtomicUsize,
    /// Connections accepted and handed to a worker.
    pub accepted: AtomicU64,
    /// Connections closed right after accept: `connections_max` were open, or a worker's backlog
    /// full.
    pub refused: AtomicU64,
    /// Calls of `accept` that failed, for example because the process is out of file descriptors.
    pub accepts_failed: AtomicU64,
    /// TLS handshakes that failed or timed out.
    pub handshakes_failed: AtomicU64,
    /// Connections closed because they did not send the HTTP/2 preface in time.
    pub prefaces_failed: AtomicU64,
    /// Connections that ended with a protocol error.
    pub connections_broken: AtomicU64,
}
