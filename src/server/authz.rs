//! Authorization of callers by domain, based on the names in their client certificates. The names
//! are read once per connection, during the handshake, and each call then compares two or three
//! strings.
//!
//! Grants are per domain because a caller can exhaust every limit of its domains and can learn from
//! the responses which users are near a limit. Gateways of different teams must not be able to do
//! that to each other, and one CA often signs the certificates of all of them.
//! For the same reason, a grant says whether its caller may also refund, peek, and send limits.
//!
//! Not here: the handshake and the verification of certificates (`tls`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use crate::domain::{DomainGrant, Permissions};
use crate::tls::TlsError;

/// Value of [`DomainGrant::domain`] that matches every domain.
pub const EVERY_DOMAIN: &str = "*";

/// TLS and authorization metrics. All are counters since the process started, except for the gauge
/// `expires_secs`.
#[derive(Debug, Default)]
pub struct TlsCounters {
    /// Number of calls rejected with PERMISSION_DENIED because the caller has no grant for the
    /// domain.
    pub denied: AtomicU64,
    /// Number of successful certificate reloads.
    pub reloads: AtomicU64,
    /// Number of failed certificate reloads, after which the old certificates stay in use.
    pub reload_failures: AtomicU64,
    /// Time at which the server certificate in use expires, in seconds since the Unix epoch.
    pub expires_secs: AtomicU64,
}

/// Client of a connection, with the domains that it may use.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Caller that may use every domain, because no grants are configured or because the connection
    /// does not use TLS, such as a connection over a Unix socket. Settings determine its
    /// permissions.
    Unrestricted,
    /// Caller that may use the domains that are granted to a name in its certificate.
    Restricted(Arc<GrantedDomains>),
}

/// Domains that one caller may use, and the metrics in which its denied calls are counted.
#[derive(Debug)]
pub(crate) struct GrantedDomains {
    domains: Box<[(Box<str>, Permissions)]>,
    counters: Arc<TlsCounters>,
}

impl Caller {
    /// Returns the caller that a client certificate identifies, or the caller of a connection
    /// without a certificate. If no grants are configured, every caller may use every domain.
    /// Otherwise, a caller without a certificate may use no domain.
    pub(crate) fn from_certificate(
        certificate: Option<&CertificateDer<'_>>,
        grants: &[DomainGrant],
        counters: &Arc<TlsCounters>,
    ) -> Caller {
        if grants.is_empty() {
            return Caller::Unrestricted;
        }
        let granted = |names: &[GeneralName<'_>]| -> Box<[(Box<str>, Permissions)]> {
            let granted = grants.iter().filter(|grant| has_name(names, &grant.caller));
            granted.map(|grant| (grant.domain.as_str().into(), grant.permissions)).collect()
        };
        Caller::Restricted(Arc::new(GrantedDomains {
            domains: certificate.map_or_else(Box::default, |leaf| with_names(leaf, granted)),
            counters: Arc::clone(counters),
        }))
    }

    /// Returns the permissions of the caller in `domain`, which are `open` if no grants are
    /// configured. If the caller may not use the domain, counts the call as denied and returns
    /// `None`.
    pub(crate) fn permissions(&self, domain: &str, open: Permissions) -> Option<Permissions> {
        let Caller::Restricted(granted) = self else { return Some(open) };
        let applies = |name: &str| name == domain || name == EVERY_DOMAIN;
        let matching = granted.domains.iter().filter(|(name, _)| applies(name));
        let permissions = matching.map(|(_, each)| *each).reduce(Permissions::union);
        if permissions.is_none() {
            granted.counters.denied.fetch_add(1, Ordering::Relaxed);
        }
        permissions
    }
}

/// Returns whether the certificate has one of `names` as a subject alternative name (SAN). A name
/// that contains `://` is compared exactly, and only with URIs. Any other name is compared ignoring
/// case, and only with DNS names. If the types were not distinguished, a CA that may issue only one
/// type of name could impersonate a caller whose name has the other type. The common name is
/// ignored (RFC 6125).
pub(crate) fn has_any_name(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    with_names(certificate, |present| names.iter().any(|name| has_name(present, name)))
}

/// Calls `read` with the subject alternative names of a certificate, or with none if the
/// certificate is malformed.
fn with_names<R>(
    certificate: &CertificateDer<'_>,
    read: impl FnOnce(&[GeneralName<'_>]) -> R,
) -> R {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return read(&[]) };
    match certificate.subject_alternative_name() {
        Ok(Some(san)) => read(&san.value.general_names),
        Ok(None) | Err(_) => read(&[]),
    }
}

fn has_name(present: &[GeneralName<'_>], name: &str) -> bool {
    present.iter().any(|present| match present {
        GeneralName::DNSName(dns) => !is_uri(name) && name.eq_ignore_ascii_case(dns),
        GeneralName::URI(uri) => is_uri(name) && name == *uri,
        _ => false,
    })
}

fn is_uri(name: &str) -> bool {
    name.contains("://")
}

/// Role of the peer that presents a certificate in a TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateRole {
    Server,
    Client,
}

/// Checks that a certificate is valid at `now_secs`, in seconds since the Unix epoch, and that its
/// extended key usage permits the role. Without this extension, a certificate permits every role.
///
/// # Errors
///
/// Returns the first defect that is found.
pub(crate) fn check_usable(
    certificate: &CertificateDer<'_>,
    role: CertificateRole,
    now_secs: u64,
) -> Result<(), TlsError> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|_| TlsError::Certificate)?;
    let validity = certificate.validity();
    let now = i64::try_from(now_secs).unwrap_or(i64::MAX);
    if validity.not_after.timestamp() <= now {
        return Err(TlsError::Expired);
    }
    if validity.not_before.timestamp() > now {
        return Err(TlsError::NotYetValid);
    }
    let usage = certificate.extended_key_usage().map_err(|_| TlsError::Certificate)?;
    let permitted = usage.is_none_or(|usage| match role {
        CertificateRole::Server => usage.value.any || usage.value.server_auth,
        CertificateRole::Client => usage.value.any || usage.value.client_auth,
    });
    if permitted { Ok(()) } else { Err(TlsError::WrongUsage) }
}

/// Returns the time at which a certificate expires, in seconds since the Unix epoch; `None` if the
/// certificate cannot be parsed.
pub(crate) fn expires_secs(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use rcgen::ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
    use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_is_usable_from_its_first_second_until_the_second_of_its_end() {
        let certificate = certificate(|params| {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        });
        let (begin, end) = (1_546_300_800, 1_577_836_800);
        let usable_at = |now| check_usable(&certificate, CertificateRole::Client, now);
        assert_eq!(usable_at(begin - 1), Err(TlsError::NotYetValid));
        assert_eq!(usable_at(begin), Ok(()));
        assert_eq!(usable_at(end - 1), Ok(()));
        assert_eq!(usable_at(end), Err(TlsError::Expired));
        assert_eq!(expires_secs(&certificate), Some(end));
    }

    #[test]
    fn a_certificate_is_usable_in_the_roles_of_its_extended_key_usage() {
        let (server, client) = (CertificateRole::Server, CertificateRole::Client);
        for (purposes, permitted) in [
            (vec![], vec![server, client]),
            (vec![Any], vec![server, client]),
            (vec![ServerAuth], vec![server]),
            (vec![ClientAuth], vec![client]),
        ] {
            let certificate = certificate(|params| params.extended_key_usages = purposes);
            for role in [server, client] {
                let usable = check_usable(&certificate, role, 1_700_000_000);
                let wrong = Err(TlsError::WrongUsage);
                let expected = if permitted.contains(&role) { Ok(()) } else { wrong };
                assert_eq!(usable, expected, "{role:?} of {permitted:?}");
            }
        }
    }

    #[test]
    fn the_case_of_a_uri_matters_and_that_of_a_dns_name_does_not() {
        let certificate = certificate(|params| {
            params.subject_alt_names = vec![
                SanType::URI("spiffe://mesh/edge".try_into().unwrap()),
                SanType::DnsName("Gateway.test".try_into().unwrap()),
            ];
        });
        let has = |name: &str| has_any_name(&certificate, &[name.to_owned()]);
        assert!(has("spiffe://mesh/edge") && has("gateway.TEST"));
        assert!(!has("spiffe://mesh/Edge"));
    }

    #[test]
    fn a_domain_without_a_grant_is_denied_and_counted() {
        let counters = Arc::default();
        let (open, none) = (Permissions::ALL, Permissions::NONE);
        let grants = [DomainGrant {
            domain: "edge".to_owned(),
            caller: "a.test".to_owned(),
            permissions: none,
        }];
        let anonymous = Caller::from_certificate(None, &grants, &counters);
        assert_eq!(anonymous.permissions("edge", open), None);
        assert_eq!(counters.denied.load(Ordering::Relaxed), 1);
        let unrestricted = Caller::from_certificate(None, &[], &counters);
        assert_eq!(unrestricted.permissions("edge", open), Some(open));
    }

    #[test]
    fn a_caller_has_the_permissions_of_all_grants_that_apply() {
        let certificate = certificate(|params| {
            params.subject_alt_names = vec![SanType::DnsName("a.test".try_into().unwrap())];
        });
        let none = Permissions::NONE;
        let grant = |domain: &str, caller: &str, permissions| DomainGrant {
            domain: domain.to_owned(),
            caller: caller.to_owned(),
            permissions,
        };
        let grants = [
            grant("edge", "a.test", Permissions { refund: true, ..none }),
            grant("*", "a.test", Permissions { peek: true, ..none }),
            grant("edge", "b.test", Permissions::ALL),
        ];
        let caller = Caller::from_certificate(Some(&certificate), &grants, &Arc::default());
        let permissions = |domain| caller.permissions(domain, Permissions::ALL).unwrap();
        assert_eq!(permissions("edge"), Permissions { limits: false, ..Permissions::ALL });
        assert_eq!(permissions("pay"), Permissions { peek: true, ..none });
    }

    #[test]
    fn malformed_certificates_carry_no_names() {
        for bytes in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", &[0xff; 64]] {
            let certificate = CertificateDer::from(bytes.to_vec());
            assert!(!has_any_name(&certificate, &["a".to_owned()]));
            assert_eq!(expires_secs(&certificate), None);
        }
    }
}
