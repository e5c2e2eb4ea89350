//! Limits and timeouts for connections, calls, and shutdown of the gRPC port, with their defaults.
//!
//! Not here: the bounds on the contents of a request (`wire::decode`).

use std::time::Duration;

/// HTTP/2 flow-control window of a call, in bytes. This is HTTP/2's default (RFC 9113, section
/// 6.9.2). After a call is rejected, its client may still send as much as the window allows, and
/// many of these frames count as local error resets. A window of 64 KiB holds 4 frames of 16 KiB.
/// With a window of 1 MiB, 100 rejected calls could be enough to close the connection.
pub(super) const CALL_WINDOW_BYTES: u32 = 65_535;

/// Minimum number of concurrent calls that the server accepts per connection, even if it advertises
/// fewer. A client does not know [`ServerLimits::streams_max`] until it has received the server's
/// SETTINGS frame. Until then, Envoy 1.40 starts up to 1,024 calls on a connection. If the server
/// refused some of these calls, Envoy would by default let their requests pass.
pub(super) const STREAMS_ACCEPTED_MIN: u32 = 1_024;

/// Memory that a call holds until its request has arrived, and while its answer is sent, in addition
/// to both, in bytes. Covers the call's task, its h2 stream, and its buffers, which were measured to
/// take 2.9 KB.
pub(super) const WAITING_CALL_BYTES: usize = 3 * 1024;

/// Memory that a call holds while it is decided, in addition to a long request, in bytes.
pub(super) const DECIDED_CALL_BYTES: usize = 8 * 1024;

/// Memory that a call of the reflection service holds, in bytes: twice the longest answer. While
/// nobody reads its answers, tonic keeps one in a channel and one more that waits for room in it.
pub(super) const REFLECTION_CALL_BYTES: usize = 512 * 1024;

/// Maximum number of times that a call lets others run because memory has to be released first.
pub(super) const ROOM_YIELDS_MAX: usize = 1_024;

/// Limits and timeouts of the gRPC port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Maximum number of concurrent calls per connection, as advertised to the client. Without a
    /// limit, calls would queue in the server instead of the client. Envoy opens another connection
    /// when it reaches the limit. A call in flight takes 16 KiB. With 1,000 calls on each of four
    /// connections, these no longer fit in the processor's caches, and a call costs half as much
    /// again as with 250, so the server recovers more slowly after a stall. At a round trip of
    /// 1 ms, 250 calls in flight are 250,000 calls per second.
    pub streams_max: u32,
    /// HTTP/2 flow-control window of a connection, in bytes. Must be large, because h2 closes a
    /// connection whose small unread frames add up to half of the window. With a window of 1 MiB,
    /// 4,000 concurrent calls would be enough to close the connection.
    pub connection_window_bytes: u32,
    /// Maximum number of streams per connection that the client has reset but the server has not
    /// accepted yet. Envoy resets calls at its timeout (20 ms), so h2's default of 20 would close
    /// the connection after one stall. Without a limit, a rapid reset attack (CVE-2023-44487)
    /// would be possible.
    pub pending_resets_max: usize,
    /// Maximum number of streams that the server resets because of the client's protocol errors,
    /// over the lifetime of a connection. If exceeded, the connection is closed
    /// (RUSTSEC-2024-0003).
    pub local_error_resets_max: usize,
    /// Maximum size of the headers of a call, in bytes. Envoy accepts 60 KiB of headers from a
    /// client and forwards the client's `tracestate` header. If this limit were lower, a client
    /// could make the rate limit call fail, and by default Envoy then lets the request pass.
    pub header_list_bytes_max: u32,
    /// Maximum time to receive the body of a call, even if the caller's deadline is later.
    pub receive_timeout: Duration,
    /// Maximum memory held for the calls of a connection, in bytes: incomplete requests, calls in
    /// flight, and answers that have not been sent. Beyond it, the connection loses its oldest call.
    /// The default has room for eight of the longest answers.
    pub held_bytes_per_connection_max: usize,
    /// Maximum memory held for all connections and the `/json` endpoint together, in bytes. 64 KiB
    /// of each connection do not count. Beyond it, the connection that holds most loses its oldest
    /// call. The default has room for 16,000 calls that are being decided.
    pub held_bytes_max: usize,
    /// Timeout for receiving the HTTP/2 preface on a new connection.
    pub preface_timeout: Duration,
    /// Timeout for the TLS handshake of a new connection.
    pub handshake_timeout: Duration,
    /// Maximum number of open connections. When it is reached, each new connection replaces the
    /// one that has been idle longest. Envoy opens one connection per worker thread.
    pub connections_max: usize,
    /// Interval between HTTP/2 keepalive pings; `None` disables them.
    pub keepalive_interval: Option<Duration>,
    /// Timeout for the reply to a keepalive ping, after which the connection is closed.
    pub keepalive_timeout: Duration,
    /// Age at which the server sends GOAWAY on a connection, so that clients reconnect and find new
    /// replicas; `None` means never. A jitter of ±10% prevents connections from closing at the
    /// same time. There is no timeout for calls in flight, because hyper would drop some of them
    /// when the timeout expires.
    pub connection_age_max: Option<Duration>,
    /// Time after the shutdown signal during which the server still accepts connections, so that
    /// clients notice the failing health check and move to other replicas.
    pub drain_delay: Duration,
    /// Time after the shutdown signal at which all remaining connections are closed. Without this
    /// deadline, a client that never finishes its calls would delay the shutdown forever.
    pub hard_limit: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            streams_max: 250,
            connection_window_bytes: 32 * 1024 * 1024,
            pending_resets_max: 1_024,
            local_error_resets_max: 1_024,
            header_list_bytes_max: 64 * 1024,
            receive_timeout: Duration::from_secs(5),
            held_bytes_per_connection_max: 32 << 20,
            held_bytes_max: 128 << 20,
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
        assert_eq!(limits.streams_max, 250);
        assert_eq!(limits.connection_window_bytes, 33_554_432);
        assert_eq!((limits.pending_resets_max, limits.local_error_resets_max), (1_024, 1_024));
        assert_eq!(limits.header_list_bytes_max, 65_536);
        assert_eq!(limits.receive_timeout, Duration::from_secs(5));
        assert_eq!(limits.held_bytes_per_connection_max, 33_554_432);
        assert_eq!(limits.held_bytes_max, 134_217_728);
        assert_eq!(limits.preface_timeout, Duration::from_secs(5));
        assert_eq!(limits.handshake_timeout, Duration::from_secs(5));
        assert_eq!(limits.connections_max, 10_000);
        assert_eq!(limits.keepalive_interval, Some(Duration::from_secs(30)));
        assert_eq!(limits.keepalive_timeout, Duration::from_secs(10));
        assert_eq!(limits.connection_age_max, Some(Duration::from_secs(86_400)));
        assert_eq!(limits.drain_delay, Duration::from_secs(5));
        assert_eq!(limits.hard_limit, Duration::from_secs(25));
    }
}
