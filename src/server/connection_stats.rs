//! Counters of the connections on the gRPC port, read by telemetry.
//!
//! Not here: decisions, which go to the observer.

use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Counters since the start; `open` is a gauge.
#[derive(Debug, Default)]
pub struct ConnectionStats {
    /// Open connections.
    pub open: AtomicUsize,
    /// Connections accepted and handed to a worker.
    pub accepted: AtomicU64,
    /// Connections closed at once because `connections_max` were open.
    pub refused: AtomicU64,
    /// Failed accepts, such as out of file descriptors.
    pub accepts_failed: AtomicU64,
    /// TLS handshakes that failed or timed out.
    pub handshakes_failed: AtomicU64,
    /// Connections without a valid HTTP/2 preface in time.
    pub prefaces_failed: AtomicU64,
    /// Connections that ended with a protocol error.
    pub connections_broken: AtomicU64,
}
