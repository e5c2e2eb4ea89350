//! TLS for the service: the server's certificate, callers' certificates, and which callers may
//! come; replaceable while serving.
//!
//! Not here: files and their watching (`app` hands over PEM text).

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
    /// Who signs callers' certificates; with it, a caller without one is refused.
    pub client_authority: Option<Vec<u8>>,
    /// Which callers may come: their certificate must name one of these as a DNS name or URI.
    /// Empty: all that the authority signed.
    pub allowed_callers: Vec<String>,
    /// Which of them may ask which domains. Empty: every one all domains.
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

/// TLS as it is in force. All clones are one: what [`Tls::replace`] sets holds for every
/// connection that comes later.
#[derive(Clone, Debug)]
pub struct Tls {
    in_force: Arc<ArcSwap<InForce>>,
    counters: Arc<TlsCounters>,
}

#[derive(Debug)]
struct InForce {
    config: Arc<ServerConfig>,
    grants: Vec<Grant>,
    /// When the server's certificate ends.
    expires_secs: u64,
}

impl Tls {
    /// TLS with that material. A certificate whose time is over is taken: there is no better one
    /// to go on with, and not every caller looks.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming the part that cannot be used.
    pub fn new(material: &TlsMaterial) -> Result<Self, WireError> {
        let in_force = InForce::of(material)?;
        let counters = Arc::new(TlsCounters::default());
        counters.expires_secs.store(in_force.expires_secs, Ordering::Relaxed);
        Ok(Tls { in_force: Arc::new(ArcSwap::from_pointee(in_force)), counters })
    }

    /// Puts other material in force. Connections that are open stay.
    ///
    /// # Errors
    ///
    /// As [`Tls::new`], and [`WireError::Expired`] for a certificate whose time is over at `now`;
    /// the old material stays in force then.
    pub fn replace(&self, material: &TlsMaterial, now: Micros) -> Result<(), WireError> {
        let replaced = InForce::of(material).and_then(|in_force| match in_force.expires_secs {
            ended if ended <= now.0 / 1_000_000 => Err(WireError::Expired),
            _ => Ok(in_force),
        });
        let outcome = match replaced {
            Ok(in_force) => {
                self.counters.expires_secs.store(in_force.expires_secs, Ordering::Relaxed);
                self.in_force.store(Arc::new(in_force));
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.count(outcome.is_ok());
        outcome
    }

    /// Counts an attempt to replace the material: one that failed before it came here too.
    pub fn count(&self, replaced: bool) {
        let TlsCounters { replaced: done, not_replaced, .. } = &*self.counters;
        if replaced { done } else { not_replaced }.fetch_add(1, Ordering::Relaxed);
    }

    /// What is counted here.
    pub fn counters(&self) -> Arc<TlsCounters> {
        Arc::clone(&self.counters)
    }

    /// The secured connection, and who is at its other end.
    pub(crate) async fn accept(
        &self,
        socket: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Caller)> {
        let in_force = self.in_force.load_full();
        let secured = TlsAcceptor::from(Arc::clone(&in_force.config)).accept(socket).await?;
        let chain = secured.get_ref().1.peer_certificates();
        let leaf = chain.and_then(<[_]>::first);
        let caller = Caller::known_by(leaf, &in_force.grants, &self.counters);
        Ok((secured, caller))
    }
}

impl InForce {
    fn of(material: &TlsMaterial) -> Result<InForce, WireError> {
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
        // A resumed session shows no certificate: one that has expired, or whose authority was
        // replaced, would go on. Callers connect once a day; a whole handshake costs them nothing.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(InForce { config: Arc::new(config), grants: material.grants.clone(), expires_secs })
    }
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
    Ok(Arc::new(AllowedCallers { signed, allowed: allowed.to_vec() }))
}

/// Lets a caller in whose certificate is signed by the authority and names one of `allowed`.
#[derive(Debug)]
struct AllowedCallers {
    signed: Arc<dyn ClientCertVerifier>,
    allowed: Vec<String>,
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
        if authz::carries_one(end_entity, &self.allowed) {
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
