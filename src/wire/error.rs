//! What can go wrong in this room at start, and in the client. A refused request is not an error,
//! and a request that is at fault is answered, not reported here.

use std::io;

/// Why a listener, its TLS, its answers or the client cannot do what the settings ask for.
#[derive(Debug)]
pub enum WireError {
    /// The address cannot be listened on. Another process may hold it: a retry may help.
    Bind {
        /// The address as it was asked for.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A thread or its runtime could not be started.
    Thread {
        /// What the system said.
        source: io::Error,
    },
    /// A header's name may not be used. Change the setting.
    HeaderName {
        /// The name as it was written.
        name: String,
        /// Why not.
        why: HeaderNameError,
    },
    /// The spread of waits is above 100 %. Change the setting.
    Spread {
        /// The percentage asked for.
        percent: u8,
    },
    /// The server's certificate is not a PEM chain of at least one certificate.
    Certificate,
    /// The server's key is not a PEM private key.
    PrivateKey,
    /// The certificates that callers are checked by are not PEM, or there are none.
    ClientAuthority,
    /// The key does not fit the certificate, or rustls refuses the combination.
    Tls {
        /// What rustls said.
        source: rustls::Error,
    },
    /// The certificate's time is over. Another one helps.
    Expired,
    /// A list of accepted callers needs certificates to check callers by.
    AllowListWithoutAuthority,
    /// The client's target is not an address. Change the argument.
    Target {
        /// The target as it was written.
        target: String,
    },
    /// The server cannot be reached. A retry may help.
    Connect {
        /// The target as it was written.
        target: String,
        /// What the transport said.
        source: tonic::transport::Error,
    },
    /// The server answered with an error. Whether a retry helps depends on the code.
    Refused {
        /// The gRPC status.
        status: Box<tonic::Status>,
    },
}

/// Why a header's name may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderNameError {
    /// Empty, or with a character that a header's name cannot have (control characters too).
    NotAName,
    /// A pseudo-header, such as `:status`.
    Pseudo,
    /// Belongs to one hop of a connection, such as `transfer-encoding`.
    HopByHop,
    /// Says how long or of what type the body is, or whom the request is for.
    Framing,
    /// Another setting sends the same header already.
    Twice,
}

impl HeaderNameError {
    const fn words(self) -> &'static str {
        match self {
            HeaderNameError::NotAName => "it is not a header name",
            HeaderNameError::Pseudo => "pseudo-headers belong to the protocol",
            HeaderNameError::HopByHop => "it belongs to a single hop",
            HeaderNameError::Framing => "it describes the body or the addressee",
            HeaderNameError::Twice => "another setting sends it already",
        }
    }
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WireError::Bind { address, source } => {
                write!(f, "cannot listen on {address}: {source}")
            }
            WireError::Thread { source } => write!(f, "cannot start a serving thread: {source}"),
            WireError::HeaderName { name, why } => {
                write!(f, "header {name:?} cannot be sent: {}", why.words())
            }
            WireError::Spread { percent } => {
                write!(f, "a spread of {percent} % is above 100 %")
            }
            WireError::Certificate => f.write_str("the certificate is not a PEM chain"),
            WireError::PrivateKey => f.write_str("the key is not a PEM private key"),
            WireError::ClientAuthority => {
                f.write_str("the client authority is not a PEM list of certificates")
            }
            WireError::Tls { source } => write!(f, "certificate and key cannot be used: {source}"),
            WireError::Expired => f.write_str("the certificate's time is over"),
            WireError::AllowListWithoutAuthority => {
                f.write_str("a list of accepted callers needs a client authority")
            }
            WireError::Target { target } => write!(f, "{target:?} is not HOST:PORT"),
            WireError::Connect { target, .. } => write!(f, "cannot connect to {target}"),
            WireError::Refused { status } => {
                write!(f, "the server answered {:?}: {}", status.code(), status.message())
            }
        }
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WireError::Bind { source, .. } | WireError::Thread { source } => Some(source),
            WireError::Tls { source } => Some(source),
            WireError::Connect { source, .. } => Some(source),
            WireError::Refused { status } => Some(status.as_ref()),
            WireError::HeaderName { .. }
            | WireError::Spread { .. }
            | WireError::Certificate
            | WireError::PrivateKey
            | WireError::ClientAuthority
            | WireError::Expired
            | WireError::AllowListWithoutAuthority
            | WireError::Target { .. } => None,
        }
    }
}
