//! Errors of the server at startup and on a certificate reload.
//!
//! Not here: rejected requests, which are not errors, and invalid requests
//! (`decode::DecodeError`).

use std::io;

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
    /// The server certificate file is not PEM, or contains no certificate or a malformed one.
    Certificate,
    /// The server key file is not a PEM private key.
    PrivateKey,
    /// The CA file for client certificates is not PEM or contains no certificate.
    ClientAuthority,
    /// The key does not match the certificate, or rustls does not support one of them.
    Tls {
        /// Error that rustls returned.
        source: rustls::Error,
    },
    /// The server certificate to reload has already expired, so the old one stays in use.
    Expired,
    /// The server certificate to reload is not valid yet, so the old one stays in use.
    NotYetValid,
    /// The server certificate to reload does not permit server authentication (extended key
    /// usage), so the old one stays in use.
    NotForServers,
    /// Allowed callers or grants are configured without a CA for verifying client certificates.
    AllowListWithoutAuthority,
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
            WireError::Certificate => {
                f.write_str(
                    "no PEM certificate in it (no -----BEGIN CERTIFICATE-----): give the PEM file of \
                     the certificate; `openssl x509 -inform der -in FILE -out cert.pem` converts DER",
                )
            }
            WireError::PrivateKey => {
                f.write_str(
                    "no PEM private key in it (no -----BEGIN PRIVATE KEY-----): give the PEM file of \
                     the key; `openssl pkey -inform der -in FILE -out key.pem` converts DER",
                )
            }
            WireError::ClientAuthority => {
                f.write_str("the CA file for client certificates is not a PEM list of certificates: give the PEM \
                     file of the CA")
            }
            WireError::Tls { source: rustls::Error::InconsistentKeys(_) } => {
                f.write_str("the private key is not that of the certificate; give both of one pair")
            }
            WireError::Tls { source } => write!(f, "certificate and key cannot be used: {source}"),
            WireError::Expired => f.write_str("the certificate has expired"),
            WireError::NotYetValid => f.write_str("the certificate is not valid yet"),
            WireError::NotForServers => {
                f.write_str("the certificate is not for servers (extended key usage)")
            }
            WireError::AllowListWithoutAuthority => {
                f.write_str("allowed callers and grants need a CA for client certificates")
            }
        }
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WireError::Bind { source, .. } | WireError::Thread { source } => Some(source),
            WireError::Tls { source: rustls::Error::InconsistentKeys(_) } => None,
            WireError::Tls { source } => Some(source),
            WireError::HeaderName { .. }
            | WireError::RetryJitter { .. }
            | WireError::Certificate
            | WireError::PrivateKey
            | WireError::ClientAuthority
            | WireError::Expired
            | WireError::NotYetValid
            | WireError::NotForServers
            | WireError::AllowListWithoutAuthority => None,
        }
    }
}
