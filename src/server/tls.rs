//! TLS of the gRPC port: server certificate, verification of client certificates, and reload of the
//! certificates while serving.
//!
//! Not here: reading and watching the files (`app`), authorization by domain (`authz`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, DistinguishedName, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::authz;
use super::authz::{Caller, CertificateRole, TlsCounters};
use crate::domain::{DomainGrant, Micros, UnreadableKind};
use crate::tls::{TlsError, parse_certificates, parse_identity, verify_signatures_by};

/// Input for the TLS configuration of the gRPC port: the server's certificate and private key, and
/// the rules for client certificates.
#[derive(Clone, Default)]
pub struct TlsMaterial {
    /// Certificate chain of the server as PEM text, leaf first.
    pub certificate: Vec<u8>,
    /// Private key of the server's leaf certificate as PEM text, in PKCS #8, PKCS #1 or SEC1
    /// format.
    pub private_key: Vec<u8>,
    /// CA certificates for verifying client certificates, as PEM text. If set, every client must
    /// present a certificate.
    pub client_authority: Option<Vec<u8>>,
    /// Subject alternative names (DNS names and URIs) of accepted clients. A client certificate
    /// must contain at least one of these names. If empty, names are not checked, and any
    /// valid certificate that is in `client_authority` or is signed by a CA in `client_authority`
    /// is accepted.
    pub allowed_callers: Vec<String>,
    /// Grants of domains to callers. If empty, every caller may use every domain.
    pub grants: Vec<DomainGrant>,
}

/// TLS configuration in use, shared by all clones. [`Tls::replace`] affects only new connections.
#[derive(Clone, Debug)]
pub struct Tls {
    active_config: Arc<ArcSwap<ActiveConfig>>,
    counters: Arc<TlsCounters>,
}

/// TLS configuration that was built from a [`TlsMaterial`].
#[derive(Debug)]
struct ActiveConfig {
    server_config: Arc<ServerConfig>,
    grants: Vec<DomainGrant>,
    /// Leaf certificate of the server, without the rest of its chain.
    leaf: CertificateDer<'static>,
    /// Time at which the server certificate expires, in seconds since the Unix epoch.
    expires_secs: u64,
}

/// Returns what is wrong with a caller whose handshake failed.
pub(crate) fn classify_failure(error: &io::Error) -> UnreadableKind {
    use rustls::{AlertDescription as Alert, Error};
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(Error::NoCertificatesPresented | Error::InvalidCertificate(_)) => {
            UnreadableKind::ClientCertificate
        }
        Some(Error::NoApplicationProtocol) => UnreadableKind::NoHttp2InTls,
        Some(Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            // From rustls, if another authority has the same name: the signature does not verify.
            | Alert::DecryptError
            | Alert::CertificateExpired
            | Alert::UnsupportedCertificate,
        )) => UnreadableKind::ServerCertificate,
        _ => UnreadableKind::Handshake,
    }
}

impl Tls {
    /// Builds a TLS configuration from certificates and keys. Accepts an expired certificate,
    /// because at startup there is no older certificate to keep using.
    ///
    /// # Errors
    ///
    /// Returns a [`TlsError`] that states which input is unusable.
    pub fn new(material: &TlsMaterial) -> Result<Self, TlsError> {
        let active = ActiveConfig::build(material)?;
        let counters = Arc::new(TlsCounters::default());
        counters.expires_secs.store(active.expires_secs, Ordering::Relaxed);
        Ok(Tls { active_config: Arc::new(ArcSwap::from_pointee(active)), counters })
    }

    /// Replaces the certificates and keys, and counts the reload. Open connections keep the old
    /// ones. If the reload fails, the old configuration stays in use.
    ///
    /// # Errors
    ///
    /// Returns any error of [`Tls::new`]. Returns [`TlsError::Expired`],
    /// [`TlsError::NotYetValid`], or [`TlsError::WrongUsage`] if callers would reject the
    /// certificate at `now`.
    pub fn replace(&self, material: &TlsMaterial, now: Micros) -> Result<(), TlsError> {
        let outcome = ActiveConfig::build(material).and_then(|active| {
            authz::check_usable(&active.leaf, CertificateRole::Server, now.0 / 1_000_000)?;
            self.counters.expires_secs.store(active.expires_secs, Ordering::Relaxed);
            self.active_config.store(Arc::new(active));
            Ok(())
        });
        self.count_reload(outcome.is_ok());
        outcome
    }

    /// Counts a successful or failed reload. [`Tls::replace`] counts its own result. Call this only
    /// if a reload fails before it calls `replace`, for example because a file is unreadable.
    pub fn count_reload(&self, succeeded: bool) {
        let TlsCounters { reloads, reload_failures, .. } = &*self.counters;
        if succeeded { reloads } else { reload_failures }.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the TLS and authorization metrics.
    pub fn counters(&self) -> Arc<TlsCounters> {
        Arc::clone(&self.counters)
    }

    /// Performs the server side of a TLS handshake. Returns the encrypted stream and the caller
    /// that the client certificate identifies, or an error if the handshake fails.
    pub(crate) async fn accept(
        &self,
        socket: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Caller)> {
        let active = self.active_config.load_full();
        let stream = TlsAcceptor::from(Arc::clone(&active.server_config)).accept(socket).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let leaf = chain.and_then(<[_]>::first);
        let caller = Caller::from_certificate(leaf, &active.grants, &self.counters);
        Ok((stream, caller))
    }
}

impl ActiveConfig {
    fn build(material: &TlsMaterial) -> Result<ActiveConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let (chain, key) = parse_identity(&material.certificate, &material.private_key)?;
        let leaf = chain.first().cloned().ok_or(TlsError::Certificate)?;
        let expires_secs = authz::expires_secs(&leaf).ok_or(TlsError::Certificate)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &material.client_authority {
            Some(authority) => {
                let verifier = build_verifier(authority, &material.allowed_callers, provider)?;
                builder.with_client_cert_verifier(verifier)
            }
            None if material.allowed_callers.is_empty() && material.grants.is_empty() => {
                builder.with_no_client_auth()
            }
            None => return Err(TlsError::AllowListWithoutAuthority),
        };
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // No session resumption: a resumed session skips the check of the client certificate, so an
        // expired one would stay valid. Full handshakes are cheap here: Envoy reconnects once a
        // day.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ActiveConfig {
            server_config: Arc::new(config),
            grants: material.grants.clone(),
            leaf,
            expires_secs,
        })
    }
}

/// Builds the verifier that checks client certificates against the CA and the allowed callers.
fn build_verifier(
    authority: &[u8],
    allowed: &[String],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    let trusted = parse_certificates(authority).ok_or(TlsError::Authority)?;
    for certificate in &trusted {
        roots.add(certificate.clone())?;
    }
    let signature_verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|_| TlsError::Authority)?;
    Ok(Arc::new(CallerVerifier {
        signature_verifier,
        trusted_certificates: trusted,
        allowed_names: allowed.to_vec(),
    }))
}

/// Verifier of client certificates. Accepts a certificate that is in the CA file or is signed by a
/// CA in that file. If `allowed_names` is not empty, the certificate must also contain a name that
/// is in `allowed_names`.
#[derive(Debug)]
struct CallerVerifier {
    signature_verifier: Arc<dyn ClientCertVerifier>,
    /// All certificates that the CA file contains.
    trusted_certificates: Vec<CertificateDer<'static>>,
    allowed_names: Vec<String>,
}

impl CallerVerifier {
    /// Returns whether the CA file contains this certificate and the certificate is valid for a
    /// client at `now`. Needed for certificates created with `openssl req -x509`, which are marked
    /// as a CA: webpki rejects a CA certificate as an end-entity certificate.
    fn is_directly_trusted(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
        self.trusted_certificates.iter().any(|trusted| trusted == certificate)
            && authz::check_usable(certificate, CertificateRole::Client, now.as_secs()).is_ok()
    }
}

impl ClientCertVerifier for CallerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signature_verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified =
            match self.signature_verifier.verify_client_cert(end_entity, intermediates, now) {
                Err(_) if self.is_directly_trusted(end_entity, now) => {
                    ClientCertVerified::assertion()
                }
                verified => verified?,
            };
        if self.allowed_names.is_empty() || authz::has_any_name(end_entity, &self.allowed_names) {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    verify_signatures_by!(signature_verifier);
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// Material with a certificate that is valid until the first day of a year.
    fn valid_until(year: i32) -> TlsMaterial {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["tidegate.test".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        TlsMaterial {
            certificate: certificate.pem().into_bytes(),
            private_key: key.serialize_pem().into_bytes(),
            ..TlsMaterial::default()
        }
    }

    #[test]
    fn the_reported_expiry_is_that_of_the_certificate_in_use() {
        let tls = Tls::new(&valid_until(2040)).unwrap();
        let counters = tls.counters();
        let reported = || {
            let TlsCounters { expires_secs, reloads, reload_failures, .. } = &*counters;
            [expires_secs, reloads, reload_failures].map(|counter| counter.load(Ordering::Relaxed))
        };
        assert_eq!(reported(), [2_208_988_800, 0, 0]);
        let now = Micros::from_secs(1_700_000_000);
        tls.replace(&valid_until(2045), now).unwrap();
        assert_eq!(reported(), [2_366_841_600, 1, 0]);
        assert!(matches!(tls.replace(&valid_until(2020), now), Err(TlsError::Expired)));
        assert_eq!(reported(), [2_366_841_600, 1, 1]);
    }

    /// A resumed session would skip the check of the client certificate.
    #[test]
    fn no_session_can_be_resumed() {
        let config = ActiveConfig::build(&valid_until(2040)).unwrap().server_config;
        assert_eq!(config.send_tls13_tickets, 0);
        assert!(!config.session_storage.can_cache() && !config.ticketer.enabled());
    }
}
