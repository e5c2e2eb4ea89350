//! Authorization of callers by domain, from the names in their client certificates. The names are
//! read once per connection, at the handshake; each call then compares two or three strings.
//!
//! Grants are per domain because whoever may call a domain can exhaust anybody's limit in it and can
//! learn from the responses who is near one. Gateways of several teams must not be able to do that to
//! each other, and the CA that signs all of their certificates cannot tell them apart.
//!
//! Not here: handshakes and which certificates are accepted at all (`tls`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// Matches every domain in a [`Grant`].
pub const EVERY_DOMAIN: &str = "*";

/// A domain and the callers that may use it. If any grant exists, a caller without one is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The domain, or [`EVERY_DOMAIN`].
    pub domain: String,
    /// DNS names and URIs; a certificate that carries one of them is granted the domain.
    pub callers: Vec<String>,
}

/// Counters of TLS and authorization since the start; `expires_secs` is a gauge.
#[derive(Debug, Default)]
pub struct TlsCounters {
    /// Calls denied because the caller has no grant for the domain.
    pub denied: AtomicU64,
    /// Successful certificate reloads.
    pub replaced: AtomicU64,
    /// Failed certificate reloads; the old certificates stay in use.
    pub not_replaced: AtomicU64,
    /// Expiry of the server certificate in use, in seconds since the Unix epoch.
    pub expires_secs: AtomicU64,
}

/// The authorized peer of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// May use every domain: no grants are configured.
    Unrestricted,
    /// May use the domains granted to its certificate.
    Restricted(Arc<GrantedDomains>),
}

#[derive(Debug)]
pub(crate) struct GrantedDomains {
    domains: Box<[Box<str>]>,
    counters: Arc<TlsCounters>,
}

impl Caller {
    /// Returns the caller that presented `certificate`. Without one it is granted nothing.
    pub(crate) fn from_certificate(
        certificate: Option<&CertificateDer<'_>>,
        grants: &[Grant],
        counters: &Arc<TlsCounters>,
    ) -> Caller {
        if grants.is_empty() {
            return Caller::Unrestricted;
        }
        let carried =
            |grant: &&Grant| certificate.is_some_and(|leaf| names_any(leaf, &grant.callers));
        let domains = grants.iter().filter(carried).map(|grant| grant.domain.as_str().into());
        Caller::Restricted(Arc::new(GrantedDomains {
            domains: domains.collect(),
            counters: Arc::clone(counters),
        }))
    }

    /// Returns whether the caller may use `domain`, and counts a denial.
    pub(crate) fn is_authorized(&self, domain: &str) -> bool {
        let Caller::Restricted(granted) = self else { return true };
        let authorized =
            granted.domains.iter().any(|one| **one == *domain || **one == *EVERY_DOMAIN);
        if !authorized {
            granted.counters.denied.fetch_add(1, Ordering::Relaxed);
        }
        authorized
    }
}

/// Returns whether a subject alternative name of the certificate is in `names`. DNS names compare
/// without regard to case, URIs exactly. The common name is ignored (RFC 6125).
pub(crate) fn names_any(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    let Ok(Some(carried)) = certificate.subject_alternative_name() else { return false };
    carried.value.general_names.iter().any(|name| match name {
        GeneralName::DNSName(name) => names.iter().any(|one| one.eq_ignore_ascii_case(name)),
        GeneralName::URI(uri) => names.iter().any(|one| one == uri),
        _ => false,
    })
}

/// Returns the expiry of a certificate in seconds since the Unix epoch, or `None` if it cannot be
/// parsed.
pub(crate) fn expires_secs(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_without_a_grant_is_denied_and_counted() {
        let counters = Arc::default();
        let grants = [Grant { domain: "edge".to_owned(), callers: vec!["a.test".to_owned()] }];
        let anonymous = Caller::from_certificate(None, &grants, &counters);
        assert!(!anonymous.is_authorized("edge"));
        assert_eq!(counters.denied.load(Ordering::Relaxed), 1);
        assert!(Caller::from_certificate(None, &[], &counters).is_authorized("edge"));
    }

    #[test]
    fn malformed_certificates_carry_no_names() {
        for bytes in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", &[0xff; 64]] {
            let certificate = CertificateDer::from(bytes.to_vec());
            assert!(!names_any(&certificate, &["a".to_owned()]));
            assert_eq!(expires_secs(&certificate), None);
        }
    }
}
