//! Settings of a client, checked when it is built.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::client::{Client, Counts, Shared};
use crate::decision::error_text;
use crate::degraded::Degraded;
use crate::diagnosis;

/// Envoy's own default.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Beyond it, nobody waits any more, and the protocol cannot carry much larger ones.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(3_600);
/// At 20 ms each, 1,000 waiting calls are 50,000 decisions a second.
const PENDING_MAX: usize = 1_000;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A server that disappears without closing the connection is noticed after these two together.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What happens to a request for which there is no decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It passes: a limiter must not take down what it protects.
    #[default]
    Allow,
    /// It is answered with 503 or UNAVAILABLE: one request too many is worse than one too few.
    Deny,
}

/// Why a client cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The address is not `http://HOST:PORT` or `https://HOST:PORT`.
    Address(String),
    /// The domain is empty.
    DomainEmpty,
    /// Certificates are set, but the address is `http://`, so nothing would use them.
    TlsWithoutHttps,
    /// Certificates or keys cannot be read.
    Tls(String),
    /// The timeout or the number of pending calls is 0.
    Zero(&'static str),
    /// The timeout is longer than an hour.
    TimeoutTooLong,
    /// Built outside a Tokio runtime, which runs the connection.
    NoRuntime,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Address(given) => {
                f.write_str("the address must be http://HOST:PORT or https://HOST:PORT")?;
                // An address with a password is not repeated.
                if given.contains('@') { Ok(()) } else { write!(f, ", not {given:?}") }
            }
            BuildError::DomainEmpty => f.write_str("the domain must not be empty"),
            BuildError::TlsWithoutHttps => f.write_str(
                "certificates are only allowed with an address that starts with https://",
            ),
            BuildError::Tls(cause) => write!(f, "TLS: {cause}"),
            BuildError::Zero(setting) => write!(f, "{setting} must be greater than 0"),
            BuildError::TimeoutTooLong => f.write_str("the timeout must be at most an hour"),
            BuildError::NoRuntime => f.write_str("build the client inside a Tokio runtime"),
        }
    }
}

impl std::error::Error for BuildError {}

/// Builds a [`Client`].
#[derive(Clone)]
pub struct Builder {
    address: String,
    domain: String,
    timeout: Duration,
    on_failure: OnFailure,
    pending_max: usize,
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

impl fmt::Debug for Builder {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Builder {
    pub(crate) fn new(address: &str, domain: &str) -> Builder {
        Builder {
            address: address.to_owned(),
            domain: domain.to_owned(),
            timeout: TIMEOUT,
            on_failure: OnFailure::default(),
            pending_max: PENDING_MAX,
            ca: None,
            identity: None,
            server_name: None,
        }
    }

    /// Sets the timeout of a decision (default 20 ms). Connecting counts, too.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = timeout;
        self
    }

    /// Sets what happens without a decision (default: the request passes).
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Builder {
        self.on_failure = on_failure;
        self
    }

    /// Sets how many calls may wait for a decision at a time (default 1,000). One more fails immediately.
    #[must_use]
    pub fn pending_max(mut self, pending_max: usize) -> Builder {
        self.pending_max = pending_max;
        self
    }

    /// Sets the CA certificates, as PEM, that verify the server (default: the system's).
    #[must_use]
    pub fn ca_pem(mut self, ca: impl Into<Vec<u8>>) -> Builder {
        self.ca = Some(ca.into());
        self
    }

    /// Sets the client's certificate chain and private key, as PEM.
    #[must_use]
    pub fn identity_pem(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Builder {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Sets the name that the server's certificate must have (default: the host of the address).
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Builder {
        self.server_name = Some(name.into());
        self
    }

    /// Builds the client. It connects with the first call or [`Client::connect`], and again whenever the
    /// connection is lost.
    ///
    /// # Errors
    ///
    /// Returns a [`BuildError`] if a setting is invalid, or outside a Tokio runtime.
    pub fn build(self) -> Result<Client, BuildError> {
        if self.domain.is_empty() {
            return Err(BuildError::DomainEmpty);
        }
        if self.timeout.is_zero() {
            return Err(BuildError::Zero("timeout"));
        }
        if self.timeout > TIMEOUT_MAX {
            return Err(BuildError::TimeoutTooLong);
        }
        if self.pending_max == 0 {
            return Err(BuildError::Zero("pending_max"));
        }
        let runtime = Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let (endpoint, diagnosis) = self.endpoint()?;
        let channel = endpoint.connect_lazy();
        let fails_open = self.on_failure == OnFailure::Allow;
        Ok(Client::new(Shared {
            channel,
            degraded: Arc::new(Degraded::new(diagnosis, self.domain, fails_open, runtime.clone())),
            runtime,
            timeout: self.timeout,
            fails_open,
            pending: Arc::new(Semaphore::new(self.pending_max.min(Semaphore::MAX_PERMITS))),
            counts: Counts::default(),
        }))
    }

    fn endpoint(&self) -> Result<(Endpoint, diagnosis::Endpoint), BuildError> {
        let wrong = || BuildError::Address(self.address.clone());
        let secure = self.address.starts_with("https://");
        let endpoint = Endpoint::from_shared(self.address.clone()).map_err(|_| wrong())?;
        let uri = endpoint.uri();
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or_default();
        if !(secure || self.address.starts_with("http://"))
            || host.is_empty()
            || port == 0
            || !matches!(uri.path(), "" | "/")
            || self.address.contains(['@', '?', '#'])
        {
            return Err(wrong());
        }
        let diagnosis = diagnosis::Endpoint {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            secure,
            server_name: self.server_name.clone(),
            ca: self.ca.clone(),
            identity: self.identity.clone(),
            timeout: self.timeout,
            pending_max: self.pending_max,
        };
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        if !secure {
            let given = self.ca.is_some() || self.identity.is_some() || self.server_name.is_some();
            return if given {
                Err(BuildError::TlsWithoutHttps)
            } else {
                Ok((endpoint, diagnosis))
            };
        }
        let mut tls = ClientTlsConfig::new();
        tls = match &self.ca {
            Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name.clone());
        }
        let endpoint =
            endpoint.tls_config(tls).map_err(|error| BuildError::Tls(error_text(&error)))?;
        Ok((endpoint, diagnosis))
    }
}
