//! Connection to a control plane: its settings, and TLS with certificates that can change.
//!
//! Not here: the messages on the stream (`client`), sockets (`tls::connector`), reading files (`app`).

use std::time::Duration;

use http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::domain::with_causes;
use crate::tls::{CertificateReader, ClientCertificates, Connector, SocketError};

/// Timeout for connecting to the control plane. Enough for a TLS handshake over several networks;
/// the next attempt may reach another address of the same name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of TCP keepalive probes to the control plane. With three probes, a dead connection is
/// noticed within two minutes. HTTP/2 pings would not do, because servers on go-control-plane close
/// connections that ping more often than every five minutes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// Configuration of the connection to a control plane.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Host name or IP address of the control plane.
    pub host: String,
    /// Port of the control plane.
    pub port: u16,
    /// TLS configuration; `None` means plaintext.
    pub tls: Option<TlsConfig>,
}

/// TLS configuration of the connection to a control plane.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Name that the control plane's certificate must contain; `None` means the host name.
    pub server_name: Option<String>,
    /// Reader of the current certificates.
    pub read: CertificateReader,
}

impl ConnectionConfig {
    /// Connects to the control plane with these certificates. Returns the channel and a handle to
    /// the first error of its socket.
    ///
    /// # Errors
    ///
    /// Returns a message with the chain of causes.
    pub(crate) async fn connect(
        &self,
        certificates: Option<&ClientCertificates>,
    ) -> Result<(Channel, SocketError), String> {
        let host = &self.host;
        let authority = match host.contains(':') {
            true => format!("[{host}]:{}", self.port),
            false => format!("{host}:{}", self.port),
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let origin: Uri = format!("{scheme}://{authority}")
            .parse()
            .map_err(|error| format!("{authority:?} is not an address: {error}"))?;
        // The connector does TLS itself, so tonic must not.
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|error| with_causes(&error))?
            .origin(origin);
        let certificates = certificates.cloned().unwrap_or_default();
        let tls = self.tls.as_ref().map(|tls| {
            let name = tls.server_name.as_ref().unwrap_or(host);
            (&certificates, "h2", name.as_str())
        });
        let connector = Connector::new(host, self.port, tls);
        let mut connector = connector.map_err(|error| error.to_string())?;
        connector.keepalive_interval = Some(KEEPALIVE_INTERVAL);
        let error = connector.error.clone();
        let connecting = endpoint.connect_with_connector(connector);
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(channel)) => Ok((channel, error)),
            Ok(Err(failed)) => Err(with_causes(&failed)),
            Err(_) => Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
        }
    }
}
