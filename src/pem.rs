//! Parses certificates in PEM text, for all TLS servers and clients.
//!
//! Not here: reading files (`app`), TLS itself (`server`, `store::redis`, `control_plane`,
//! `telemetry`).

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Parses all certificates in PEM text. Returns `None` if there is no certificate or one is
/// malformed.
pub(crate) fn parse_certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    Some(all).filter(|all| !all.is_empty())
}

/// Returns the CA certificates that a client trusts: those in `pem`, or those of the operating
/// system if `pem` is `None`. Returns `None` if `pem` contains no certificate or a malformed one.
pub(crate) fn trusted_certificates(pem: Option<&[u8]>) -> Option<Vec<CertificateDer<'static>>> {
    match pem {
        Some(pem) => parse_certificates(pem),
        None => Some(rustls_native_certs::load_native_certs().certs),
    }
}
