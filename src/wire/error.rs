//! Errors of the server at startup and on a certificate reload.
//!
//! Not here: rejected requests, which are not errors, and invalid requests
//! (`decode::DecodeError`).

use std::io;

use crate::tls::TlsError;

/// Error of the gRPC server at startup, or of a certificate reload.
#[derive(Debug)]
pub enum WireError {
    /// Binding an address failed. Retrying may help if another process is about to release the
    /// address.
    Bind {
        /// Address to bind, as configured.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Starting a worker thread or its runtime failed.
    Thread {
        /// Error of the operating system.
        source: io::Error,
    },
    /// A configured header name is not allowed.
    HeaderName {
        /// Header name, as configured.
        name: String,
        /// Reason why the header name is not allowed.
        why: HeaderNameError,
    },
    /// The configured jitter of `Retry-After` is above 100 %.
    RetryJitter {
        /// Jitter in percent, as configured.
        percent: u8,
    },
    /// The certificates or the private key of the server cannot be used.
    Tls(TlsError),
}

/// Reason why a configured header name is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderNameError {
    /// The name is empty, or contains a character that is not allowed in header names, such as a
    /// line break.
    Malformed,
    /// The name belongs to an HTTP/2 pseudo-header, such as `:status`.
    PseudoHeader,
    /// The name belongs to a hop-by-hop header, such as `transfer-encoding`.
    HopByHop,
    /// The name belongs to a header that describes or addresses the message, such as
    /// `content-length` or `host`.
    Reserved,
    /// Another setting already configures a header with this name, or the name is `Retry-After`.
    Duplicate,
}

impl HeaderNameError {
    const fn message(self) -> &'static str {
        match self {
            HeaderNameError::Malformed => "it is not a header name",
            HeaderNameError::PseudoHeader => "pseudo-headers belong to the protocol",
            HeaderNameError::HopByHop => "it is a hop-by-hop header",
            HeaderNameError::Reserved => "it describes or addresses the message",
            HeaderNameError::Duplicate => "another setting already sends it",
        }
    }
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WireError::Bind { address, source } => {
                write!(f, "cannot listen on {address}: {source}")
            }
            WireError::Thread { source } => write!(f, "cannot start a worker thread: {source}"),
            WireError::HeaderName { name, why } => {
                write!(f, "header {name:?} cannot be sent: {}", why.message())
            }
            WireError::RetryJitter { percent } => {
                write!(f, "a spread of {percent} % is above 100 %")
            }
            WireError::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WireError::Bind { source, .. } | WireError::Thread { source } => Some(source),
            WireError::HeaderName { .. } | WireError::RetryJitter { .. } | WireError::Tls(_) => {
                None
            }
        }
    }
}
