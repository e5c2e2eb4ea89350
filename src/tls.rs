//! TLS: parses certificates and private keys in PEM text, for the gRPC server and for the clients of
//! Redis, of a control plane, and of an OTLP collector, and configures these clients.
//!
//! Not here: reading files (`app`), verification of the server's callers (`server::tls`).

#[cfg(feature = "server")]
mod connector;

#[cfg(feature = "server")]
pub(crate) use connector::{Connector, SocketError};

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, RootCertStore};

/// Reason why certificates or a private key cannot be used. Retrying helps only after the files
/// have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// The certificate file is not PEM, or contains no certificate or a malformed one.
    Certificate,
    /// The key file is not a PEM private key.
    PrivateKey,
    /// The CA file is not PEM, or contains no certificate or a malformed one.
    Authority,
    /// Neither the CA file nor the operating system has a usable CA certificate.
    NoAuthority,
    /// The private key does not match the certificate.
    KeyMismatch,
    /// rustls does not support the certificate or the private key. Contains the reason.
    Unusable(String),
    /// The certificate has expired.
    Expired,
    /// The certificate is not valid yet.
    NotYetValid,
    /// The extended key usage of the certificate does not permit the role in which it is used:
    /// server or client.
    WrongUsage,
    /// The name that a server's certificate must contain is not a host name or an IP address.
    ServerName(String),
    /// Allowed callers or grants are configured without a CA for verifying client certificates.
    AllowListWithoutAuthority,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsError::Certificate => {
                "no PEM certificate (no -----BEGIN CERTIFICATE-----): give the PEM file of the \
                 certificate; `openssl x509 -inform der -in FILE -out cert.pem` converts DER"
            }
            TlsError::PrivateKey => {
                "no PEM private key (no -----BEGIN PRIVATE KEY-----): give the PEM file of the key; \
                 `openssl pkey -inform der -in FILE -out key.pem` converts DER"
            }
            TlsError::Authority => {
                "the CA file is not a PEM list of certificates: give the PEM file of the CA"
            }
            TlsError::NoAuthority => "no usable CA certificate: give the PEM file of the CA",
            TlsError::KeyMismatch => {
                "the private key does not match the certificate; use the key that the certificate \
                 was issued for"
            }
            TlsError::Unusable(reason) => {
                return write!(f, "the certificate and its key cannot be used: {reason}");
            }
            TlsError::ServerName(name) => {
                return write!(f, "{name:?} is neither a host name nor an IP address");
            }
            TlsError::Expired => "the certificate has expired",
            TlsError::NotYetValid => "the certificate is not valid yet",
            TlsError::WrongUsage => "the certificate is not for servers (extended key usage)",
            TlsError::AllowListWithoutAuthority => {
                "allowed callers and grants need a CA for client certificates"
            }
        })
    }
}

impl std::error::Error for TlsError {}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InconsistentKeys(_) => TlsError::KeyMismatch,
            other => TlsError::Unusable(other.to_string()),
        }
    }
}

/// Parses a certificate chain and its private key in PEM text.
pub(crate) fn parse_identity(
    chain: &[u8],
    key: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = parse_certificates(chain).ok_or(TlsError::Certificate)?;
    Ok((chain, PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::PrivateKey)?))
}

/// Parses all certificates in PEM text. Returns `None` if there is no certificate or one is
/// malformed.
pub(crate) fn parse_certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    Some(all).filter(|all| !all.is_empty())
}

/// Certificates and private key of a client, as PEM text, and how it verifies the server.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientCertificates {
    /// CA certificates that verify the server, or the server's own self-signed certificate; `None`
    /// means the operating system's CAs.
    pub authority: Option<Vec<u8>>,
    /// Certificate chain and private key of the client; `None` sends no certificate.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether to accept a valid certificate that was issued for a different host name.
    pub skip_hostname: bool,
}

impl fmt::Debug for ClientCertificates {
    /// Prints which fields are set, but never the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificates")
            .field("authority", &self.authority.is_some())
            .field("identity", &self.identity.is_some())
            .field("skip_hostname", &self.skip_hostname)
            .finish()
    }
}

/// Function that returns the current certificates of a client, or `None` while they cannot be read.
/// It is called before each new connection, so that replaced files take effect.
#[derive(Clone)]
pub struct CertificateReader(Arc<dyn Fn() -> Option<ClientCertificates> + Send + Sync>);

impl CertificateReader {
    /// Creates a reader that calls `read`.
    pub fn new(read: impl Fn() -> Option<ClientCertificates> + Send + Sync + 'static) -> Self {
        CertificateReader(Arc::new(read))
    }

    pub(crate) fn read(&self) -> Option<ClientCertificates> {
        (self.0)()
    }
}

impl fmt::Debug for CertificateReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateReader(…)")
    }
}

impl ClientCertificates {
    /// Builds a rustls configuration that offers `protocol` with ALPN, or no protocol if it is
    /// empty.
    ///
    /// # Errors
    ///
    /// Returns an error if a certificate or the private key cannot be used.
    pub(crate) fn build_config(&self, protocol: &str) -> Result<Arc<ClientConfig>, TlsError> {
        let trusted = match &self.authority {
            Some(pem) => parse_certificates(pem).ok_or(TlsError::Authority)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        if roots.add_parsable_certificates(trusted.iter().cloned()).0 == 0 {
            return Err(TlsError::NoAuthority);
        }
        let provider = Arc::new(ring::default_provider());
        let webpki =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|error| TlsError::Unusable(error.to_string()))?;
        let verifier = ServerVerifier { webpki, trusted, skip_hostname: self.skip_hostname };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.identity {
            Some((chain, key)) => {
                let (chain, key) = parse_identity(chain, key)?;
                builder.with_client_auth_cert(chain, key)?
            }
            None => builder.with_no_client_auth(),
        };
        if !protocol.is_empty() {
            config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        }
        Ok(Arc::new(config))
    }
}

/// Implements the methods of a rustls verifier that verify signatures, by those of a field.
macro_rules! verify_signatures_by {
    ($field:ident) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            self.$field.verify_tls12_signature(message, certificate, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            self.$field.verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.$field.supported_verify_schemes()
        }
    };
}
#[cfg(feature = "server")]
pub(crate) use verify_signatures_by;

/// Verifier of server certificates. Accepts a certificate that is in the CA file or is signed by a
/// CA in that file. webpki alone rejects a self-signed certificate that is marked as a CA, as
/// created with `openssl req -x509`.
#[derive(Debug)]
struct ServerVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    /// All certificates that the CA file contains.
    trusted: Vec<CertificateDer<'static>>,
    /// Whether to accept a certificate regardless of the host names in it.
    skip_hostname: bool,
}

impl ServerVerifier {
    /// Returns whether the CA file contains this certificate and webpki rejects it only because it
    /// is marked as a CA. webpki checks the validity period first, and reports an expired
    /// certificate as a different error.
    fn is_directly_trusted(&self, certificate: &CertificateDer<'_>, error: &rustls::Error) -> bool {
        matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(_)))
            && self.trusted.iter().any(|trusted| trusted == certificate)
    }
}

impl ServerCertVerifier for ServerVerifier {
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

    verify_signatures_by!(webpki);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_not_printed() {
        let identity = Some((b"chain".to_vec(), b"key".to_vec()));
        let tls = ClientCertificates { identity, ..ClientCertificates::default() };
        assert_eq!(
            format!("{tls:?}"),
            "ClientCertificates { authority: false, identity: true, skip_hostname: false }"
        );
    }
}
