//! TLS for connections to Redis: loads and reloads the certificates, and performs the handshake.
//!
//! Replaces the TLS of the `redis` crate, which rejects a self-signed server certificate that is
//! marked as a CA, as created with `openssl req -x509`, even if that certificate is in the CA file.
//! Not here: reading files (`app`), the Redis handshake (`dialer`).

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::config::{RedisConfigError, Tls, TlsReloader};
use crate::pem::{parse_certificates, trusted_certificates};

/// TLS configuration for new connections, with the function that rereads the certificates.
#[derive(Debug)]
pub(crate) struct ClientTls {
    reloader: Option<TlsReloader>,
    loaded: Mutex<LoadedTls>,
}

/// Most recently read certificates, and the TLS configuration in use. If these certificates are
/// invalid, the configuration still contains the previous valid ones.
#[derive(Debug)]
struct LoadedTls {
    /// Most recently read certificates, valid or not.
    latest: Arc<Tls>,
    config: Arc<ClientConfig>,
}

impl ClientTls {
    /// Creates a TLS configuration from the certificates in `tls`. New connections use it until the
    /// certificates are reloaded.
    ///
    /// # Errors
    ///
    /// Returns [`RedisConfigError::Tls`] if a certificate or private key cannot be parsed.
    pub(crate) fn new(
        tls: &Tls,
        reloader: Option<TlsReloader>,
    ) -> Result<ClientTls, RedisConfigError> {
        let loaded = LoadedTls { latest: Arc::new(tls.clone()), config: client_config(tls)? };
        Ok(ClientTls { reloader, loaded: Mutex::new(loaded) })
    }

    /// Rereads the certificates and returns the configuration for a new connection. If the new
    /// certificates are invalid, logs an error once and keeps the old ones.
    fn refresh(&self) -> Arc<ClientConfig> {
        let read = self.reloader.as_ref().and_then(TlsReloader::read);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tls) = read.filter(|tls| *tls != *loaded.latest) else {
            return Arc::clone(&loaded.config);
        };
        match client_config(&tls) {
            Ok(config) => {
                loaded.config = config;
                tracing::info!("reloaded the certificates for Redis");
            }
            Err(error) => {
                tracing::error!(%error, "invalid certificates for Redis: the old ones stay in use");
            }
        }
        loaded.latest = Arc::new(tls);
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

fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>, RedisConfigError> {
    let invalid = |reason: String| RedisConfigError::Tls(reason);
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let malformed = || invalid("a certificate file is not a PEM list".to_owned());
    let trusted = trusted_certificates(tls.ca.as_deref()).ok_or_else(malformed)?;
    let (added, _) = roots.add_parsable_certificates(trusted.iter().cloned());
    if added == 0 {
        return Err(invalid("there is no certificate authority".to_owned()));
    }
    let webpki =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| invalid(error.to_string()))?;
    let verifier = RedisVerifier { webpki, trusted, skip_hostname: tls.skip_hostname };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match &tls.client {
        Some((chain, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| invalid(format!("the private key: {error}")))?;
            let chain = parse_certificates(chain).ok_or_else(malformed)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| invalid(error.to_string()))?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

/// Verifier of server certificates. Accepts a certificate that is in the CA file or is signed by a
/// CA in that file.
#[derive(Debug)]
struct RedisVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    /// All certificates that the CA file contains.
    trusted: Vec<CertificateDer<'static>>,
    /// Whether to accept a certificate regardless of the host names in it.
    skip_hostname: bool,
}

impl RedisVerifier {
    /// Returns whether the CA file contains this certificate and webpki rejects it only because it
    /// is marked as a CA. webpki checks the validity period first, and reports an expired
    /// certificate as a different error.
    fn is_directly_trusted(&self, certificate: &CertificateDer<'_>, error: &rustls::Error) -> bool {
        matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(_)))
            && self.trusted.iter().any(|trusted| trusted == certificate)
    }
}

impl ServerCertVerifier for RedisVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.webpki.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            Err(error) if self.is_directly_trusted(end_entity, &error) => {
                let certificate = ParsedCertificate::try_from(end_entity)?;
                if !self.skip_hostname {
                    verify_server_name(&certificate, server_name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            // The chain is verified before the name.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.skip_hostname => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
