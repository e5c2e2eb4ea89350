//! What the listener counts: for telemetry to read.
//!
//! Not here: decisions, which the observer is told of.

use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Counters of the listener, all since its start except `open`.
#[derive(Debug, Default)]
pub struct ConnectionStats {
    /// Connections that are open now.
    pub open: AtomicUsize,
    /// Connections that were accepted and given to a core.
    pub accepted: AtomicU64,
    /// Connections that were closed at once, because as many as allowed were open.
    pub refused: AtomicU64,
    /// Times that the system would not hand out a connection (no file descriptor left).
    pub accepts_failed: AtomicU64,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: AtomicU64,
    /// Connections that did not begin HTTP/2 in time, or spoke something else.
    pub prefaces_failed: AtomicU64,
    /// Connections that ended with a protocol error or were closed for one.
    pub connections_broken: AtomicU64,
}
