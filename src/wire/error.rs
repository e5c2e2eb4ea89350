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
        why: &'static str,
    },
    /// The certificates or the private key of the server cannot be used.
    Tls(TlsError),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WireError::Bind { address, source } => {
                write!(f, "cannot listen on {address}: {source}")
            }
            WireError::Thread { source } => write!(f, "cannot start a worker thread: {source}"),
            WireError::HeaderName { name, why } => {
                write!(f, "header {name:?} cannot be sent: {why}")
            }
            WireError::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WireError::Bind { source, .. } | WireError::Thread { source } => Some(source),
            WireError::HeaderName { .. } | WireError::Tls(_) => None,
        }
    }
}
