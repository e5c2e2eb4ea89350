//! What a caller may ask, by the names in its certificate: a connection learns it once, at the
//! handshake, and each call is a comparison of two or three texts.
//!
//! Why by domain: whoever may ask a domain can use up anybody's limit in it, and learn from the
//! answers who is near one. Gateways of several teams that share a service must not be able to do
//! that to each other, and the authority that signs them all cannot tell them apart.
//!
//! Not here: handshakes and who may come at all (`tls`), what is answered (`service`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// Stands for every domain in a [`Grant`].
pub const EVERY_DOMAIN: &str = "*";

/// A domain and who may ask it. Where there is a grant at all, what none grants is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The domain, or [`EVERY_DOMAIN`].
    pub domain: String,
    /// DNS names and URIs; a certificate with one of them may ask.
    pub callers: Vec<String>,
}

/// What TLS counts, all since the start except `expires_secs`.
#[derive(Debug, Default)]
pub struct TlsCounters {
    /// Calls for a domain that their caller may not ask.
    pub denied: AtomicU64,
    /// Times that other certificates were put in force.
    pub replaced: AtomicU64,
    /// Times that other certificates could not be used, and the old ones stayed.
    pub not_replaced: AtomicU64,
    /// When the server's certificate in force ends, in seconds since 1970.
    pub expires_secs: AtomicU64,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// May ask every domain: nothing restricts callers here.
    Unrestricted,
    /// May ask what it was granted.
    Granted(Arc<Granted>),
}

#[derive(Debug)]
pub(crate) struct Granted {
    domains: Box<[Box<str>]>,
    counters: Arc<TlsCounters>,
}

impl Caller {
    /// The caller with this certificate; without one nothing is granted.
    pub(crate) fn known_by(
        certificate: Option<&CertificateDer<'_>>,
        grants: &[Grant],
        counters: &Arc<TlsCounters>,
    ) -> Caller {
        if grants.is_empty() {
            return Caller::Unrestricted;
        }
        let carried =
            |grant: &&Grant| certificate.is_some_and(|leaf| carries_one(leaf, &grant.callers));
        let domains = grants.iter().filter(carried).map(|grant| grant.domain.as_str().into());
        Caller::Granted(Arc::new(Granted {
            domains: domains.collect(),
            counters: Arc::clone(counters),
        }))
    }

    /// Whether it may ask that domain; a no is counted.
    pub(crate) fn may_ask(&self, domain: &str) -> bool {
        let Caller::Granted(granted) = self else { return true };
        let may = granted.domains.iter().any(|one| **one == *domain || **one == *EVERY_DOMAIN);
        if !may {
            granted.counters.denied.fetch_add(1, Ordering::Relaxed);
        }
        may
    }
}

/// Whether the certificate names one of `names`: a DNS name without regard to case, or a URI as
/// it is. The subject's common name counts for nothing, as everywhere since RFC 6125.
pub(crate) fn carries_one(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    let Ok(Some(carried)) = certificate.subject_alternative_name() else { return false };
    carried.value.general_names.iter().any(|name| match name {
        GeneralName::DNSName(name) => names.iter().any(|one| one.eq_ignore_ascii_case(name)),
        GeneralName::URI(uri) => names.iter().any(|one| one == uri),
        _ => false,
    })
}

/// When a certificate ends, in seconds since 1970; `None` if it is none.
pub(crate) fn expires_secs(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_granted_is_denied_and_counted() {
        let counters = Arc::default();
        let grants = [Grant { domain: "edge".to_owned(), callers: vec!["a.test".to_owned()] }];
        let nobody = Caller::known_by(None, &grants, &counters);
        assert!(!nobody.may_ask("edge"));
        assert_eq!(counters.denied.load(Ordering::Relaxed), 1);
        assert!(Caller::known_by(None, &[], &counters).may_ask("edge"));
    }

    #[test]
    fn bytes_that_are_no_certificate_carry_nothing() {
        for bytes in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", &[0xff; 64]] {
            let certificate = CertificateDer::from(bytes.to_vec());
            assert!(!carries_one(&certificate, &["a".to_owned()]));
            assert_eq!(expires_secs(&certificate), None);
        }
    }
}
