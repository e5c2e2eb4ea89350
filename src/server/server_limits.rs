//! Limits of connections and of the drain, each with its default and the reason for it.
//!
//! Not here: the bounds of a request (`wire::decode`).

use std::time::Duration;

/// Limits of the gRPC port. Each is a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Advertised maximum of concurrent calls per connection. Without it h2 advertises no limit and
    /// calls queue up here instead of in the caller. At 1,000 Envoy stays on one connection.
    pub streams_max: u32,
    /// Flow-control window of a connection, in bytes. h2 charges small frames against half of it
    /// and closes the connection when that is used up: with 1 MiB, at 4,000 calls at once.
    pub connection_window_bytes: u32,
    /// Maximum of accepted streams that the peer has reset before the server read them. Envoy resets
    /// calls at its timeout (20 ms): h2's default of 20 would close the connection after one stall,
    /// and no bound would allow a rapid reset attack (CVE-2023-44487).
    pub pending_resets_max: usize,
    /// Maximum of streams that the server resets for the peer's protocol errors over the lifetime of
    /// a connection (RUSTSEC-2024-0003).
    pub local_error_resets_max: usize,
    /// Maximum size of a call's headers in bytes. Envoy forwards a client's `tracestate` and accepts
    /// 60 KiB from the client: with a lower limit, a long one would fail the rate limit call, and
    /// Envoy lets failed calls pass.
    pub header_list_bytes_max: u32,
    /// Timeout for the HTTP/2 preface.
    pub preface_timeout: Duration,
    /// Timeout for the TLS handshake.
    pub handshake_timeout: Duration,
    /// Maximum of open connections; a further one is closed as soon as it is accepted. Envoy opens
    /// one per worker thread.
    pub connections_max: usize,
    /// Interval of HTTP/2 keepalive pings; `None`: none are sent.
    pub keepalive_interval: Option<Duration>,
    /// Timeout of a keepalive ping, after which the connection is closed.
    pub keepalive_timeout: Duration,
    /// Age at which a connection gets a GOAWAY and finishes its calls, so that callers spread over new
    /// replicas; varied by ±10 % so that connections do not close together. There is no grace period:
    /// with one, hyper drops calls.
    pub connection_age_max: Option<Duration>,
    /// Time between the shutdown signal and the end of accepting, in which callers notice the failing
    /// health check and move to other replicas.
    pub drain_delay: Duration,
    /// Time between the shutdown signal and the closing of all remaining connections: a frozen caller
    /// never finishes its calls.
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
