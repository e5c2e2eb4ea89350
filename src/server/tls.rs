//! TLS of the gRPC port: the server certificate, verification of client certificates, and reloading
//! both while serving.
//!
//! Not here: reading and watching files (`app` passes PEM text), authorization by domain (`authz`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::authz;
use super::authz::{Caller, Grant, TlsCounters};
use crate::domain::Micros;
use crate::wire::WireError;

/// Certificates and keys, as PEM text.
#[derive(Clone, Default)]
pub struct TlsMaterial {
    /// The server's chain, leaf first.
    pub certificate: Vec<u8>,
    /// The leaf's private key.
    pub private_key: Vec<u8>,
    /// CA certificates that sign client certificates. If set, a client certificate is required.
    pub client_authority: Option<Vec<u8>>,
    /// DNS names and URIs; a client certificate must carry one of them. Empty: every certificate that
    /// the CA signed is accepted.
    pub allowed_callers: Vec<String>,
    /// Grants of domains to callers. Empty: every caller may use every domain.
    pub grants: Vec<Grant>,
}

impl std::fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TlsMaterial { client_authority, allowed_callers, grants, .. } = self;
        f.debug_struct("TlsMaterial")
            .field("client_authority", &client_authority.is_some())
            .field("allowed_callers", allowed_callers)
            .field("grants", grants)
            .finish_non_exhaustive()
    }
}

/// The TLS configuration in use. Clones share it: [`Tls::replace`] applies to every later connection.
#[derive(Clone, Debug)]
pub struct Tls {
    active: Arc<ArcSwap<ActiveConfig>>,
    counters: Arc<TlsCounters>,
}

#[derive(Debug)]
struct ActiveConfig {
    config: Arc<ServerConfig>,
    grants: Vec<Grant>,
    /// Expiry of the server certificate, in seconds since the Unix epoch.
    expires_secs: u64,
}

impl Tls {
    /// Builds the configuration. An expired certificate is accepted here, because at the start there
    /// is no better one to fall back to.
    ///
    /// # Errors
    ///
    /// [`WireError`] that names the unusable part.
    pub fn new(material: &TlsMaterial) -> Result<Self, WireError> {
        let active = ActiveConfig::of(material)?;
        let counters = Arc::new(TlsCounters::default());
        counters.expires_secs.store(active.expires_secs, Ordering::Relaxed);
        Ok(Tls { active: Arc::new(ArcSwap::from_pointee(active)), counters })
    }

    /// Replaces the configuration. Open connections keep the old one.
    ///
    /// # Errors
    ///
    /// As [`Tls::new`], and [`WireError::Expired`] if the certificate has expired at `now`. On an
    /// error the old configuration stays in use.
    pub fn replace(&self, material: &TlsMaterial, now: Micros) -> Result<(), WireError> {
        let replaced = ActiveConfig::of(material).and_then(|active| match active.expires_secs {
            expiry if expiry <= now.0 / 1_000_000 => Err(WireError::Expired),
            _ => Ok(active),
        });
        let outcome = match replaced {
            Ok(active) => {
                self.counters.expires_secs.store(active.expires_secs, Ordering::Relaxed);
                self.active.store(Arc::new(active));
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.count(outcome.is_ok());
        outcome
    }

    /// Counts a reload that failed before [`Tls::replace`] was called, such as an unreadable file, or
    /// one that succeeded.
    pub fn count(&self, replaced: bool) {
        let TlsCounters { replaced: done, not_replaced, .. } = &*self.counters;
        if replaced { done } else { not_replaced }.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters of TLS and authorization.
    pub fn counters(&self) -> Arc<TlsCounters> {
        Arc::clone(&self.counters)
    }

    /// Performs the server handshake; returns the encrypted stream and the authorized peer.
    pub(crate) async fn accept(
        &self,
        socket: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Caller)> {
        let active = self.active.load_full();
        let stream = TlsAcceptor::from(Arc::clone(&active.config)).accept(socket).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let leaf = chain.and_then(<[_]>::first);
        let caller = Caller::from_certificate(leaf, &active.grants, &self.counters);
        Ok((stream, caller))
    }
}

impl ActiveConfig {
    fn of(material: &TlsMaterial) -> Result<ActiveConfig, WireError> {
        let refused = |source| WireError::Tls { source };
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&material.certificate).ok_or(WireError::Certificate)?;
        let expires_secs =
            chain.first().and_then(authz::expires_secs).ok_or(WireError::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&material.private_key)
            .map_err(|_| WireError::PrivateKey)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(refused)?;
        let builder = match &material.client_authority {
            Some(authority) => {
                let verifier = caller_verifier(authority, &material.allowed_callers, provider)?;
                builder.with_client_cert_verifier(verifier)
            }
            None if material.allowed_callers.is_empty() && material.grants.is_empty() => {
                builder.with_no_client_auth()
            }
            None => return Err(WireError::AllowListWithoutAuthority),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(refused)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // No session resumption: a resumed session presents no certificate, so that an expired one, or
        // one of a removed CA, would stay valid. Envoy connects once a day; a full handshake is cheap.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ActiveConfig { config: Arc::new(config), grants: material.grants.clone(), expires_secs })
    }
}

/// Parses the certificates of a PEM text; `None` if there is none or any is malformed.
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
    Ok(Arc::new(AllowedNames { signed, allowed: allowed.to_vec() }))
}

/// Accepts a client certificate that the CA signed and that carries a name in `allowed`.
#[derive(Debug)]
struct AllowedNames {
    signed: Arc<dyn ClientCertVerifier>,
    allowed: Vec<String>,
}

impl ClientCertVerifier for AllowedNames {
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
        if authz::names_any(end_entity, &self.allowed) {
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
