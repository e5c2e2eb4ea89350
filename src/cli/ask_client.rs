//! Connection of `tidegate ask` to a service, and advice for calls that fail.
//!
//! Not here: the calls (`ask_command`, `ask_batch`).

use std::error::Error;
use std::time::Duration;

use tonic::Status;
use tonic::transport::{self, Channel, ClientTlsConfig, Endpoint};

use crate::app::Failure;
use crate::domain::with_causes;
use crate::peer_protocol::{Peer, detect_peer};

/// Address of a server, and how to connect to it.
#[derive(Debug)]
pub(super) struct Server {
    /// Address, as `HOST:PORT`.
    pub(super) target: String,
    /// Timeout for connecting and for each call.
    pub(super) timeout: Duration,
    /// TLS settings; `None` means plaintext.
    pub(super) tls: Option<ClientTlsConfig>,
}

/// Reason why a call got no response.
#[derive(Debug)]
pub(super) enum CallError {
    /// The address is malformed, the server cannot be reached, or TLS fails.
    Connect(transport::Error),
    /// The server returned an error, or the connection failed during the call.
    Status(Box<Status>),
}

impl CallError {
    /// Returns the error and its causes as text.
    fn reason(&self, target: &str) -> String {
        match self {
            CallError::Connect(error) => {
                format!("cannot connect to {target}: {}", with_causes(error))
            }
            CallError::Status(status) => {
                let answer =
                    format!("the server answered {:?}: {}", status.code(), status.message());
                match status.source() {
                    Some(source) => format!("{answer}: {}", with_causes(source)),
                    None => answer,
                }
            }
        }
    }
}

impl From<transport::Error> for CallError {
    fn from(error: transport::Error) -> Self {
        CallError::Connect(error)
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        CallError::Status(Box::new(status))
    }
}

impl Server {
    pub(super) async fn connect(&self) -> Result<Channel, CallError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.target))?
            .tcp_nodelay(true)
            .connect_timeout(self.timeout)
            .timeout(self.timeout);
        if let Some(tls) = &self.tls {
            endpoint = endpoint.tls_config(tls.clone())?;
        }
        Ok(endpoint.connect().await?)
    }

    /// Returns the failure of a call, with advice on which flag to correct. Probes the protocol
    /// that the server speaks for this advice.
    pub(super) async fn failure(&self, error: CallError) -> Failure {
        let target = &self.target;
        let reason = error.reason(target);
        let advice = self.find_advice(&error, &reason).await;
        Failure::Unavailable(match (advice, error) {
            (None, _) => format!("{target}: {reason}"),
            // With advice, only the last cause matters: the others describe the HTTP/2 library.
            (Some(advice), CallError::Connect(error)) => {
                format!("{target}: cannot connect: {}; {advice}", root_cause(&error))
            }
            (Some(advice), CallError::Status(status)) if status.source().is_none() => {
                format!("{target}: {reason}; {advice}")
            }
            (Some(advice), CallError::Status(_)) => {
                format!("{target}: no answer to a gRPC call; {advice}")
            }
        })
    }

    /// Returns advice on which flag to correct, or `None` if no wrong flag was found. `reason` is
    /// the text of the error.
    async fn find_advice(&self, error: &CallError, reason: &str) -> Option<&'static str> {
        if let CallError::Status(status) = error
            && status.code() == tonic::Code::Unimplemented
        {
            return Some("this gRPC server is not a rate limit service: correct the address");
        }
        // The server answered, even if nothing listens a moment later.
        if let CallError::Status(status) = error
            && status.source().is_none()
            && status.code() == tonic::Code::Unavailable
        {
            return Some(
                "the service, or a proxy in front of it, is unavailable: it is starting or \
                 stopping, or cannot reach Redis; see its /readyz",
            );
        }
        let (host, port) = self.target.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let uses_tls = self.tls.is_some();
        Some(match detect_peer(host, port.parse().ok()?, self.timeout).await {
            Peer::UnknownHost => "the host name cannot be resolved",
            Peer::ConnectionRefused => {
                "nothing listens there: start `tidegate serve`, or correct the address; the gRPC \
                 port is 8081 by default"
            }
            Peer::Http => "this is an HTTP port: give the gRPC port, which is 8081 by default",
            Peer::Redis => "this is a Redis port: give the gRPC port of Tidegate, 8081 by default",
            Peer::Tls if !uses_tls => "this port uses TLS: add --ca FILE with the CA's certificate",
            Peer::Http2 | Peer::Unidentified if uses_tls => "this port has no TLS: remove --ca",
            Peer::Tls if reason.contains("UnknownIssuer") => {
                "the CA in --ca did not sign the server's certificate: give the CA that did"
            }
            Peer::Tls if reason.contains("not valid for name") => {
                "give the name in the server's certificate with --server-name"
            }
            Peer::Tls if reason.contains("CertificateRequired") => {
                "the server requires a client certificate: add --cert and --key"
            }
            Peer::Tls | Peer::Http2 | Peer::Unidentified => return None,
        })
    }
}

/// Returns the last error in the chain of sources.
fn root_cause<'e>(error: &'e (dyn Error + 'static)) -> &'e dyn Error {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause
}
