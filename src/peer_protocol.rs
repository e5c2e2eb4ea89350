//! Detects the protocol of the server at an address, for hints about wrong addresses and flags.
//!
//! Not here: the wording of the hints (`store::redis::client`, `cli`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Maximum number of bytes to read from a server's first reply; enough to identify the protocol.
const FIRST_BYTES_MAX: usize = 16;
/// Request to which both HTTP servers and Redis reply immediately. Redis parses it as a GET with
/// the wrong number of arguments.
const HTTP_REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// Start of an HTTP/2 connection: the connection preface and an empty SETTINGS frame.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Result of probing an address: the kind of server found, or the reason why none was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The host name cannot be resolved.
    UnknownHost,
    /// The TCP connection was refused.
    ConnectionRefused,
    /// No reply arrived in time, or the protocol is unknown.
    Unidentified,
    /// Redis server without TLS.
    Redis,
    /// Server that requires TLS; the protocol inside TLS is unknown.
    Tls,
    /// HTTP/1 server without TLS.
    Http,
    /// HTTP/2 or gRPC server without TLS.
    Http2,
}

/// Detects the kind of server at an address. First sends an HTTP/1 request. If the reply is not
/// conclusive, sends the start of an HTTP/2 connection. If that reply is not conclusive either,
/// sends a TLS ClientHello. Each step takes at most `step_max`.
pub(crate) async fn detect_peer(host: &str, port: u16, step_max: Duration) -> Peer {
    let within = |future| tokio::time::timeout(step_max, future);
    match tokio::time::timeout(step_max, tokio::net::lookup_host((host, port))).await {
        Ok(Err(_)) => return Peer::UnknownHost,
        Err(_) => return Peer::Unidentified,
        Ok(Ok(_)) => {}
    }
    match within(fetch_first_bytes(host, port, HTTP_REQUEST)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Peer::ConnectionRefused;
        }
        Ok(Ok(bytes)) if bytes.starts_with(b"HTTP/") => return Peer::Http,
        Ok(Ok(bytes)) if bytes.starts_with(b"-") || bytes.starts_with(b"+") => {
            return Peer::Redis;
        }
        Ok(_) | Err(_) => {}
    }
    // The answer is a SETTINGS or GOAWAY frame: three bytes of length, then the type.
    if let Ok(Ok(bytes)) = within(fetch_first_bytes(host, port, HTTP2_PREFACE)).await
        && matches!(bytes.get(..4), Some([0, 0, _, 4 | 7]))
    {
        return Peer::Http2;
    }
    let Some(hello) = build_client_hello() else { return Peer::Unidentified };
    match within(fetch_first_bytes(host, port, &hello)).await {
        // The type of a TLS record, alert or handshake, and the major version.
        Ok(Ok(bytes)) if matches!(bytes.get(..2), Some([0x15 | 0x16, 3])) => Peer::Tls,
        Ok(_) | Err(_) => Peer::Unidentified,
    }
}

/// Sends a request over a new connection and returns the first bytes of the reply.
async fn fetch_first_bytes(host: &str, port: u16, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect((host, port)).await?;
    socket.write_all(request).await?;
    let mut bytes = vec![0; FIRST_BYTES_MAX];
    let read = socket.read(&mut bytes).await?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Returns a TLS ClientHello, the first message of a handshake, or `None` if it cannot be built.
fn build_client_hello() -> Option<Vec<u8>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").ok()?;
    let mut connection = ClientConnection::new(Arc::new(config), name).ok()?;
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).ok()?;
    Some(hello)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_begins_with_a_tls_record() {
        assert_eq!(build_client_hello().unwrap()[..2], [0x16, 3]);
    }
}
