//! Callers that cannot be understood, such as those of another protocol: what they are, how many
//! there were, and how to correct them.
//!
//! Not here: reading and logging them (`server`, `admin`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::LogLimiter;

/// Number of bytes at the start of a connection that tell what a caller speaks: those of the HTTP/2
/// preface, the longest of the beginnings.
pub const PREFACE_BYTES: usize = 24;

/// Binary header of version 2 of the PROXY protocol.
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// What a port expects at the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortProtocol {
    /// HTTP/2 without TLS, or within it.
    Http2,
    /// HTTP/2 over TLS.
    Tls,
    /// HTTP/1.1 without TLS.
    Http1,
}

/// Declares the kinds, each with its name in metrics, its meaning, and what to do about it.
macro_rules! kinds {
    ($($kind:ident $name:literal $meaning:literal $advice:literal;)+) => {
        /// Kind of callers that cannot be understood.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum UnreadableKind {
            $(#[doc = $meaning] $kind),+
        }

        impl UnreadableKind {
            /// All kinds, in the order of their discriminants.
            pub const ALL: &[UnreadableKind] = &[$(UnreadableKind::$kind),+];

            /// Returns the value of the metric label `kind`, what the caller did, and what to do.
            pub const fn describe(self) -> (&'static str, &'static str, &'static str) {
                match self {
                    $(UnreadableKind::$kind => ($name, $meaning, $advice)),+
                }
            }
        }
    };
}

kinds! {
    Http1 "http1" "HTTP/1.1 on the gRPC port" "set http2_protocol_options on Envoy's cluster; probes and /json use the HTTP port";
    Tls "tls" "TLS on a port without TLS" "remove transport_socket from Envoy's cluster, or set --grpc-server-use-tls; the HTTP ports have no TLS";
    Plaintext "plaintext" "plain text on the gRPC port, which requires TLS" "add a transport_socket with UpstreamTlsContext to Envoy's cluster";
    Http2OnHttpPort "http2_on_http_port" "gRPC or HTTP/2 on an HTTP port" "use the gRPC port (8081 by default)";
    ProxyProtocol "proxy_protocol" "a PROXY protocol header" "turn the PROXY protocol to Tidegate off in the proxy or load balancer";
    Redis "redis" "a Redis client" "correct the address of Redis in the client's settings";
    OtherBytes "other_bytes" "neither HTTP nor TLS" "find out what runs at the address of peer";
    NoHttp2InTls "no_http2_in_tls" "TLS without ALPN h2" "set http2_protocol_options on Envoy's cluster";
    ClientCertificate "client_certificate" "no client certificate, or a wrong one" "it must be issued by --grpc-client-tls-cacert and have a name of --grpc-client-tls-san";
    ServerCertificate "server_certificate" "the caller does not accept Tidegate's certificate" "compare its trusted_ca with the CA that issued --grpc-server-tls-cert";
    Handshake "handshake" "another failure of the TLS handshake" "see reason";
    GrpcWeb "grpc_web" "gRPC-Web" "call with gRPC, or send JSON to /json on the HTTP port";
    NotGrpc "not_grpc" "an HTTP/2 request that is not a gRPC call" "probes and /json use the HTTP port";
    RlsV2 "rls_v2" "version 2 of the rate limit service" "set transport_api_version: V3 in Envoy's rate_limit_service";
    UnknownMethod "unknown_method" "a method that does not exist" "Envoy's filter calls envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
}

impl UnreadableKind {
    /// Returns what the first bytes of a connection to a port are, or `None` if they may be the
    /// right ones. A connection without any bytes is a probe that only connects.
    pub fn of_first_bytes(bytes: &[u8], port: PortProtocol) -> Option<UnreadableKind> {
        let found = match bytes {
            [] => return None,
            [0x16, 3, ..] | [0x16] => UnreadableKind::Tls,
            [b'*', b'0'..=b'9', ..] => UnreadableKind::Redis,
            _ if bytes.starts_with(b"PROXY ") || bytes.starts_with(PROXY_V2) => {
                UnreadableKind::ProxyProtocol
            }
            _ if bytes.starts_with(b"PRI * HTTP/2") => UnreadableKind::Http2OnHttpPort,
            _ if is_http1(bytes) => UnreadableKind::Http1,
            _ => UnreadableKind::OtherBytes,
        };
        match (port, found) {
            (PortProtocol::Tls, UnreadableKind::Tls)
            | (PortProtocol::Http1, UnreadableKind::Http1)
            | (PortProtocol::Http2, UnreadableKind::Http2OnHttpPort) => None,
            (PortProtocol::Tls, UnreadableKind::Http1 | UnreadableKind::Http2OnHttpPort) => {
                Some(UnreadableKind::Plaintext)
            }
            _ => Some(found),
        }
    }
}

/// Returns whether the bytes are the beginning of a request line: a method and a target.
fn is_http1(bytes: &[u8]) -> bool {
    let mut words = bytes.splitn(2, |byte| *byte == b' ');
    let is_method = words.next().is_some_and(|word| word.iter().all(u8::is_ascii_uppercase));
    let target = words.next().and_then(|target| target.first());
    is_method && target.is_none_or(|first| matches!(first, b'/' | b'*' | b'h'))
}

/// Counts of callers that cannot be understood, with a limiter of the log lines about them. Its
/// memory is bounded by the number of kinds.
#[derive(Debug)]
pub struct UnreadableCallers {
    counts: [AtomicU64; UnreadableKind::ALL.len()],
    log: LogLimiter,
}

impl UnreadableCallers {
    /// Creates counts of zero. `log` admits the lines of each kind.
    pub fn new(log: LogLimiter) -> UnreadableCallers {
        UnreadableCallers { counts: Default::default(), log }
    }

    /// Counts a caller. If a log line is due, returns the number of callers of the kind since the
    /// last line. Takes a lock, which calls that are understood never do.
    pub fn record(&self, kind: UnreadableKind) -> Option<u64> {
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        let suppressed = self.log.admit("callers cannot be understood", &kind.describe().0)?;
        Some(suppressed.map_or(1, |suppressed| suppressed.get() + 1))
    }

    /// Returns the number of callers of a kind.
    pub fn count(&self, kind: UnreadableKind) -> u64 {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_what_a_caller_speaks() {
        use super::PortProtocol::{Http1, Http2, Tls};
        use super::UnreadableKind as Kind;
        let (other, redis) = (Some(Kind::OtherBytes), Some(Kind::Redis));
        let (proxy, tls) = (Some(Kind::ProxyProtocol), Some(Kind::Tls));
        let (http1, plain) = (Some(Kind::Http1), Some(Kind::Plaintext));
        for (bytes, on_http2, on_tls, on_http1) in [
            (&b""[..], None, None, None),
            (b"GET / HTTP/1.1\r\nHost: x", http1, plain, None),
            (b"OPTIONS * HTTP/1.1\r\n", http1, plain, None),
            (b"POST http://x/ HTTP/1.1", http1, plain, None),
            (b"G", http1, plain, None),
            (b"GET", http1, plain, None),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", None, plain, Some(Kind::Http2OnHttpPort)),
            (b"\x16\x03\x01\x02\0\x01", tls, None, tls),
            (b"\x16", tls, None, tls),
            (b"PROXY TCP4 192.0.2.1 192", proxy, proxy, proxy),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", proxy, proxy, proxy),
            (b"*1\r\n$4\r\nPING\r\n", redis, redis, redis),
            (b"SSH-2.0-OpenSSH_9.6\r\n", other, other, other),
            (b"\x00\xff random", other, other, other),
            (b"get / HTTP/1.1", other, other, other),
            (b"HELLO 3\r\n", other, other, other),
        ] {
            let found = [Http2, Tls, Http1].map(|port| Kind::of_first_bytes(bytes, port));
            assert_eq!(found, [on_http2, on_tls, on_http1], "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn every_kind_has_a_name_of_its_own_and_a_way_out() {
        let names: std::collections::BTreeSet<_> =
            UnreadableKind::ALL.iter().map(|kind| kind.describe().0).collect();
        assert_eq!(names.len(), UnreadableKind::ALL.len());
        let callers = UnreadableCallers::new(LogLimiter::unlimited());
        for (at, kind) in UnreadableKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, at);
            assert_eq!((callers.record(*kind), callers.count(*kind)), (Some(1), 1));
        }
    }
}
