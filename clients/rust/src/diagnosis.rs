//! Why there is no decision, in words that an operator can act on.
//!
//! The errors of gRPC do not suffice: for the HTTP port and for a port with TLS they are the same. So a second,
//! raw connection finds out what listens there. `clients/vectors/reasons.json` holds the languages equal.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::Code;

use crate::client::CHECK;
use crate::decision::{Failure, code_name};

/// A diagnosis takes at most this long, and as long again for a handshake of TLS.
const DIAGNOSIS_MAX: Duration = Duration::from_secs(3);
/// A frame of HTTP/2 starts with its length and type in 9 bytes; an HTTP/1.1 error fits into the other bound.
const FRAME_BYTES: usize = 9;
const REPLY_BYTES_MAX: usize = 1_024;
/// The preface of HTTP/2, and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const SETTINGS: u8 = 4;
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// Types of the first TLS record: an alert or a handshake.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];
/// What rustls says, in lower case, and the reason.
const TLS_TEXTS: [(&str, Reason); 8] = [
    ("unknownissuer", Reason::UnknownAuthority),
    ("badsignature", Reason::UnknownAuthority),
    ("notvalidforname", Reason::WrongName),
    ("not valid for name", Reason::WrongName),
    ("expired", Reason::Expired),
    ("not valid yet", Reason::Expired),
    ("notvalidyet", Reason::Expired),
    ("fatal alert", Reason::ClientCertificate),
];

/// What a reason names: the server, and the settings of the client.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) secure: bool,
    pub(crate) server_name: Option<String>,
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) timeout: Duration,
    pub(crate) pending_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    Unresolved,
    Refused,
    Unreachable,
    CannotConnect(String),
    HttpPort,
    NeedsTls,
    NoTls,
    UnknownAuthority,
    WrongName,
    Expired,
    ClientCertificate,
    NoAnswer,
    Closes,
}

/// What a port speaks, if it can be a gRPC port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// Without TLS.
    Http2,
    Tls,
}

impl fmt::Debug for Endpoint {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Endpoint {
    pub(crate) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The reason of a failure as far as it is known without asking the server again.
    pub(crate) fn reason(&self, failure: &Failure, path: &str, timeout: Duration) -> String {
        let address = self.address();
        match failure {
            Failure::Busy => format!(
                "{} calls are already waiting for a decision: Tidegate is slow, or the maximum is too low",
                self.pending_max
            ),
            Failure::Timeout => format!(
                "no decision within {} ms: Tidegate is slow, or the timeout is too short",
                timeout.as_secs_f64() * 1_000.0
            ),
            Failure::Status(Code::Unimplemented, _) if path == CHECK => format!(
                "{address} does not have the rate limit service: check that it is not the port of another service"
            ),
            Failure::Status(Code::Unimplemented, _) => {
                format!(
                    "{address} does not have tidegate.v1.Limits: batches and reservations need Tidegate"
                )
            }
            Failure::Status(code @ (Code::PermissionDenied | Code::Unauthenticated), message) => {
                format!("the server rejected this client with {}: {message}", code_name(*code))
            }
            Failure::Status(code, message) => {
                format!("the call failed with {}: {message}", code_name(*code))
            }
        }
    }

    /// The reason of a failure. Takes at most six seconds.
    pub(crate) async fn diagnose(
        &self,
        failure: &Failure,
        path: &str,
        timeout: Duration,
    ) -> String {
        let answered = match failure {
            Failure::Busy => true,
            Failure::Timeout => false,
            Failure::Status(code, _) => matches!(
                code,
                Code::Unimplemented
                    | Code::PermissionDenied
                    | Code::Unauthenticated
                    | Code::InvalidArgument
                    | Code::ResourceExhausted
            ),
        };
        let found = if answered { None } else { self.find(failure).await };
        match found {
            Some(found) => self.text(&found),
            None => self.reason(failure, path, timeout),
        }
    }

    async fn find(&self, failure: &Failure) -> Option<Reason> {
        match (self.protocol().await, self.secure) {
            (Err(reason), _) => Some(reason),
            (Ok(Protocol::Tls), true) => {
                let known = match failure {
                    Failure::Status(_, message) => tls_reason(message),
                    Failure::Busy | Failure::Timeout => None,
                };
                match known {
                    Some(reason) => Some(reason),
                    None => self.tls_failure().await,
                }
            }
            (Ok(Protocol::Tls), false) => Some(Reason::NeedsTls),
            (Ok(Protocol::Http2), true) => Some(Reason::NoTls),
            (Ok(Protocol::Http2), false) => None,
        }
    }

    /// Why TLS fails, if it does. gRPC may only say that the time is over: a server rejects the client's
    /// certificate after the client's part of the handshake, and then gRPC connects again and again.
    async fn tls_failure(&self) -> Option<Reason> {
        let name = ServerName::try_from(self.server_name.as_ref().unwrap_or(&self.host).clone());
        let endpoint = self.clone();
        // Reads files with the system's certificates.
        let config = tokio::task::spawn_blocking(move || endpoint.tls_config()).await.ok()??;
        let connector = TlsConnector::from(Arc::new(config));
        let deadline = Instant::now() + DIAGNOSIS_MAX;
        let shake = async {
            let stream = self.connect(deadline).await.map_err(|_| String::new())?;
            let shaken = connector.connect(name.ok().ok_or_else(String::new)?, stream).await;
            let mut stream = shaken.map_err(|error| error.to_string())?;
            // Only reads: after a write, the alert can be lost.
            stream.read(&mut [0]).await.map_err(|error| error.to_string())
        };
        tls_reason(&timeout_at(deadline, shake).await.ok()?.err()?)
    }

    fn tls_config(&self) -> Option<ClientConfig> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                roots.add_parsable_certificates(CertificateDer::pem_slice_iter(ca).flatten())
            }
            None => {
                let system = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(system.certs)
            }
        };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .ok()?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((certificates, key)) => {
                let certificates = CertificateDer::pem_slice_iter(certificates).flatten().collect();
                let key = PrivateKeyDer::from_pem_slice(key).ok()?;
                config.with_client_auth_cert(certificates, key).ok()?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Some(config)
    }

    async fn protocol(&self) -> Result<Protocol, Reason> {
        let deadline = Instant::now() + DIAGNOSIS_MAX;
        let is_tls = |reply: &[u8]| reply.first().is_some_and(|it| TLS_RECORDS.contains(it));
        let mut reply = self.exchange(PREFACE, FRAME_BYTES, deadline).await?;
        if reply.len() == FRAME_BYTES && reply[3] == SETTINGS {
            return Ok(Protocol::Http2);
        }
        if !is_tls(&reply) {
            // HTTP/1.1 servers close on the preface of HTTP/2, some without a word.
            reply = self.exchange(GET, REPLY_BYTES_MAX, deadline).await?;
        }
        let text = String::from_utf8_lossy(&reply);
        if is_tls(&reply) || text.contains("to HTTPS") || text.contains("to an HTTPS") {
            return Ok(Protocol::Tls);
        }
        Err(if text.starts_with("HTTP/") { Reason::HttpPort } else { Reason::Closes })
    }

    /// Sends a message and returns the first bytes of the reply; none if the server closes the connection.
    async fn exchange(
        &self,
        message: &[u8],
        bytes_max: usize,
        deadline: Instant,
    ) -> Result<Vec<u8>, Reason> {
        let mut stream = self.connect(deadline).await?;
        let mut reply = Vec::new();
        let read = async {
            stream.write_all(message).await?;
            while reply.len() < bytes_max {
                let mut bytes = [0; REPLY_BYTES_MAX];
                let room = bytes_max - reply.len();
                match stream.read(&mut bytes[..room]).await? {
                    0 => break,
                    count => reply.extend_from_slice(&bytes[..count]),
                }
            }
            io::Result::Ok(())
        };
        match timeout_at(deadline, read).await {
            Err(_) if reply.is_empty() => Err(Reason::NoAnswer),
            // An error means that the server closed the connection.
            Ok(_) | Err(_) => Ok(reply),
        }
    }

    async fn connect(&self, deadline: Instant) -> Result<TcpStream, Reason> {
        let target = (self.host.as_str(), self.port);
        let addresses: Vec<_> = match timeout_at(deadline, lookup_host(target)).await {
            Ok(Ok(addresses)) => addresses.collect(),
            Ok(Err(_)) | Err(_) => return Err(Reason::Unresolved),
        };
        match timeout_at(deadline, TcpStream::connect(&addresses[..])).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(Reason::Refused)
            }
            Ok(Err(error)) if error.kind() != io::ErrorKind::TimedOut => {
                Err(Reason::CannotConnect(error.to_string()))
            }
            Ok(Err(_)) | Err(_) => Err(Reason::Unreachable),
        }
    }

    fn text(&self, reason: &Reason) -> String {
        let address = self.address();
        let name = self.server_name.as_deref().unwrap_or(&self.host);
        match reason {
            Reason::Unresolved => {
                format!("the name {} does not resolve: check the address", self.host)
            }
            Reason::Refused => format!(
                "nothing listens at {address}: check the address, and that Tidegate is running"
            ),
            Reason::Unreachable => {
                format!("no connection to {address} within 3 s: check the address and the firewall")
            }
            Reason::CannotConnect(error) => format!("cannot connect to {address}: {error}"),
            Reason::HttpPort => format!(
                "this is the HTTP port: {address} answers in HTTP/1.1; use the gRPC port, 8081 by default"
            ),
            Reason::NeedsTls => {
                format!("{address} requires TLS: write https:// instead of http://")
            }
            Reason::NoTls => format!("{address} has no TLS: write http:// instead of https://"),
            Reason::UnknownAuthority => {
                "the server's certificate is not signed by a CA that this client trusts: \
                give the client the CA of the server"
                    .to_owned()
            }
            Reason::WrongName => format!(
                "the server's certificate is not valid for {name}: use a host name that it has, or set the server name"
            ),
            Reason::Expired => {
                "the server's certificate has expired or is not yet valid: renew it".to_owned()
            }
            Reason::ClientCertificate => {
                "the server requires a client certificate that is signed by a CA that it \
                trusts: give the client one"
                    .to_owned()
            }
            Reason::NoAnswer => format!(
                "{address} accepts connections but does not answer: check that it is the gRPC port, and that Tidegate \
                 is not frozen"
            ),
            Reason::Closes => format!(
                "{address} closes connections without an answer: check that it is the gRPC port"
            ),
        }
    }
}

fn tls_reason(text: &str) -> Option<Reason> {
    let said = text.to_lowercase();
    let known = TLS_TEXTS.iter().find(|(text, _)| said.contains(text));
    known.map(|(_, reason)| reason.clone())
}
