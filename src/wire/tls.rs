//! TLS for the service: the server's certificate, callers' certificates, and which callers may
//! come; replaceable while serving.
//!
//! Not here: files and their watching (`app` hands over PEM text).

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use super::error::WireError;

/// Certificates and keys, as PEM text.
#[derive(Clone, Default)]
pub struct TlsMaterial {
    /// The server's chain, leaf first.
    pub certificate: Vec<u8>,
    /// The leaf's private key.
    pub private_key: Vec<u8>,
    /// Who signs callers' certificates; with it, a caller without one is refused.
    pub client_authority: Option<Vec<u8>>,
    /// Which callers may come: their certificate must name one of these as a DNS name or URI.
    /// Empty: all that the authority signed.
    pub allowed_callers: Vec<String>,
}

impl std::fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TlsMaterial { client_authority, allowed_callers, .. } = self;
        f.debug_struct("TlsMaterial")
            .field("client_authority", &client_authority.is_some())
            .field("allowed_callers", allowed_callers)
            .finish_non_exhaustive()
    }
}

/// TLS as it is in force. All clones are one: what [`Tls::replace`] sets holds for every
/// connection that comes later.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ArcSwap<ServerConfig>>,
}

impl Tls {
    /// TLS with that material.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming the part that cannot be used.
    pub fn new(material: &TlsMaterial) -> Result<Self, WireError> {
        Ok(Tls { config: Arc::new(ArcSwap::from(config(material)?)) })
    }

    /// Puts other material in force. Connections that are open stay; sessions made under the old
    /// material are not resumed, so that a caller who is no longer allowed shows its certificate
    /// again.
    ///
    /// # Errors
    ///
    /// As [`Tls::new`]; the old material stays in force then.
    pub fn replace(&self, material: &TlsMaterial) -> Result<(), WireError> {
        self.config.store(config(material)?);
        Ok(())
    }

    pub(super) async fn accept(&self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config.load_full()).accept(socket).await
    }
}

fn config(material: &TlsMaterial) -> Result<Arc<ServerConfig>, WireError> {
    let refused = |source| WireError::Tls { source };
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&material.certificate).ok_or(WireError::Certificate)?;
    let key =
        PrivateKeyDer::from_pem_slice(&material.private_key).map_err(|_| WireError::PrivateKey)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(refused)?;
    let builder = match &material.client_authority {
        Some(authority) => {
            let verifier = caller_verifier(authority, &material.allowed_callers, provider)?;
            builder.with_client_cert_verifier(verifier)
        }
        None if material.allowed_callers.is_empty() => builder.with_no_client_auth(),
        None => return Err(WireError::AllowListWithoutAuthority),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(refused)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The certificates of a PEM text; `None` if there is none or one is damaged.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    Some(all).filter(|all| !all.is_empty())
}

fn caller_verifier(
    authority: &[u8],
    allowed: &[String],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, WireError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority).ok_or(WireError::ClientAuthority)? {
        roots.add(certificate).map_err(|source| WireError::Tls { source })?;
    }
    let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|_| WireError::ClientAuthority)?;
    if allowed.is_empty() {
        return Ok(signed);
    }
    Ok(Arc::new(AllowedCallers { signed, allowed: allowed.into() }))
}

/// Lets a caller in whose certificate is signed by the authority and names one of `allowed`.
#[derive(Debug)]
struct AllowedCallers {
    signed: Arc<dyn ClientCertVerifier>,
    allowed: Box<[String]>,
}

impl AllowedCallers {
    fn names_one(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
        let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
        names.value.general_names.iter().any(|name| match name {
            GeneralName::DNSName(name) => {
                self.allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
            }
            GeneralName::URI(uri) => self.allowed.iter().any(|allowed| allowed == uri),
            _ => false,
        })
    }
}

impl ClientCertVerifier for AllowedCallers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        if self.names_one(end_entity) {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
