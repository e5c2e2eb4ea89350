//! TLS for connections to Redis: reloads the certificates, and performs the handshake.
//!
//! Not here: the configuration and verification (`tls`), reading files (`app`), the Redis handshake
//! (`dialer`).

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::domain::Lock;
use crate::tls::{CertificateReader, ClientCertificates, TlsError};

/// TLS configuration for new connections, with the function that rereads the certificates.
#[derive(Debug)]
pub(crate) struct RedisTlsConnector {
    reloader: Option<CertificateReader>,
    loaded: Lock<LoadedTls>,
}

/// Most recently read certificates, and the TLS configuration in use. If these certificates are
/// invalid, the configuration still contains the previous valid ones.
#[derive(Debug)]
struct LoadedTls {
    /// Most recently read certificates, valid or not.
    latest: ClientCertificates,
    config: Arc<ClientConfig>,
}

impl RedisTlsConnector {
    /// Creates a TLS configuration from the certificates in `tls`. New connections use it until the
    /// certificates are reloaded.
    ///
    /// # Errors
    ///
    /// Returns an error if a certificate or the private key cannot be used.
    pub(crate) fn new(
        tls: &ClientCertificates,
        reloader: Option<CertificateReader>,
    ) -> Result<RedisTlsConnector, TlsError> {
        let loaded = LoadedTls { latest: tls.clone(), config: tls.build_config("")? };
        Ok(RedisTlsConnector { reloader, loaded: Lock::new(loaded) })
    }

    /// Rereads the certificates and returns the configuration for a new connection. If the new
    /// certificates are invalid, logs an error once and keeps the old ones.
    fn refresh(&self) -> Arc<ClientConfig> {
        let read = self.reloader.as_ref().and_then(CertificateReader::read);
        let mut loaded = self.loaded.lock();
        let Some(tls) = read.filter(|tls| *tls != loaded.latest) else {
            return Arc::clone(&loaded.config);
        };
        match tls.build_config("") {
            Ok(config) => {
                loaded.config = config;
                tracing::info!("reloaded the certificates for Redis");
            }
            Err(error) => {
                tracing::error!(%error, "invalid certificates for Redis: the old ones stay in use");
            }
        }
        loaded.latest = tls;
        Arc::clone(&loaded.config)
    }

    /// Performs the client side of a TLS handshake.
    ///
    /// # Errors
    ///
    /// Returns an error if the server's certificate is not trusted or not valid for the host, or if
    /// the server rejects the handshake.
    pub(crate) async fn handshake(
        &self,
        host: &str,
        socket: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.refresh()).connect(name, socket).await
    }
}
