//! The server's limits, in one place: each with its default and the reason for it.
//!
//! Not here: the bounds of a request (`decode`).

use std::time::Duration;

/// What one server grants its callers, and how it leaves. All are settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Calls under way on one connection, as advertised. Without it h2 advertises no limit, and a
    /// queue builds up here instead of in the caller; at 1,000 Envoy stays on one connection.
    pub streams_max: u32,
    /// Flow-control window of a connection, in bytes. h2 charges small frames against half of it
    /// and closes the connection when that is used up: with 1 MiB, at 4,000 calls at once.
    pub connection_window_bytes: u32,
    /// Calls that may be reset before this side has looked at them. Envoy resets at its timeout,
    /// 20 ms by default: h2's own 20 would close the connection after one hiccup, no bound would
    /// permit rapid reset.
    pub pending_resets_max: usize,
    /// Streams that this side may have to reset for a caller's faults over a connection's life
    /// (RUSTSEC-2024-0003).
    pub local_error_resets_max: usize,
    /// Bytes of a request's headers, all together. Where Envoy traces, it passes a client's own
    /// `tracestate` on to us, and lets a client send 60 KiB: with less room, a long one would fail
    /// the call, and Envoy lets failed calls pass.
    pub header_list_bytes_max: u32,
    /// How long a connection may take to begin HTTP/2.
    pub preface_timeout: Duration,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// Connections at once; one more is closed as soon as it is accepted. Envoy needs one for
    /// each of its worker threads.
    pub connections_max: usize,
    /// How often an HTTP/2 ping asks whether the caller is still there; `None`: never.
    pub keepalive_interval: Option<Duration>,
    /// How long the answer to that ping may take before the connection is closed.
    pub keepalive_timeout: Duration,
    /// After how long a connection is asked to leave (GOAWAY; its calls finish), so that callers
    /// spread over new replicas; varied by 10 % so that they do not leave together. There is no
    /// grace period: with one, hyper drops calls instead of announcing the end.
    pub connection_age_max: Option<Duration>,
    /// From the signal to leave until connections are refused: the time in which callers learn
    /// from health checks that they should go elsewhere.
    pub drain_delay: Duration,
    /// From the signal to leave until whatever is left is cut off: a frozen caller never finishes.
    pub hard_limit: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            streams_max: 1_000,
            connection_window_bytes: 32 * 1024 * 1024,
            pending_resets_max: 1_024,
            local_error_resets_max: 1_024,
            header_list_bytes_max: 64 * 1024,
            preface_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            connections_max: 10_000,
            keepalive_interval: Some(Duration::from_secs(30)),
            keepalive_timeout: Duration::from_secs(10),
            connection_age_max: Some(Duration::from_secs(24 * 3_600)),
            drain_delay: Duration::from_secs(5),
            hard_limit: Duration::from_secs(25),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let limits = ServerLimits::default();
        assert_eq!(limits.streams_max, 1_000);
        assert_eq!(limits.connection_window_bytes, 33_554_432);
        assert_eq!((limits.pending_resets_max, limits.local_error_resets_max), (1_024, 1_024));
        assert_eq!(limits.header_list_bytes_max, 65_536);
        assert_eq!(limits.preface_timeout, Duration::from_secs(5));
        assert_eq!(limits.handshake_timeout, Duration::from_secs(5));
        assert_eq!(limits.connections_max, 10_000);
        assert_eq!(limits.drain_delay, Duration::from_secs(5));
        assert_eq!(limits.hard_limit, Duration::from_secs(25));
    }
}
