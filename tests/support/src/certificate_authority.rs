//! Certificate authorities for one test, and the certificates they sign.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// An authority.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// One that nobody has seen before.
    pub fn new() -> Authority {
        Authority::named("an authority of the tests")
    }

    /// With a name of its own. A certificate of a stranger with the same name has a wrong signature
    /// rather than an unknown issuer.
    pub fn named(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// For a DNS name or, with `://` in it, a URI; valid for centuries.
    pub fn signs(&self, name: &str) -> Identity {
        self.signs_with(name, |_| {})
    }

    /// The same, over since 2020.
    pub fn signed_long_ago(&self, name: &str) -> Identity {
        self.signs_with(name, |params| {
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        })
    }

    /// The same, valid from 2100 on.
    pub fn signs_for_later(&self, name: &str) -> Identity {
        self.signs_with(name, |params| params.not_before = rcgen::date_time_ymd(2100, 1, 1))
    }

    /// The same, for clients only.
    pub fn signs_client(&self, name: &str) -> Identity {
        self.signs_with(name, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        })
    }

    /// A DNS name, also if it looks like a URI.
    pub fn signs_dns_name(&self, name: &str) -> Identity {
        self.signs_with("nobody.test", |params| {
            params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        })
    }

    /// A URI, also if it looks like a DNS name.
    pub fn signs_uri(&self, name: &str) -> Identity {
        self.signs_with("nobody.test", |params| {
            params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        })
    }

    /// The name as a common name only, which names nobody.
    pub fn signs_common_name(&self, name: &str) -> Identity {
        self.signs_with("nobody.test", |params| {
            params.subject_alt_names.clear();
            params.distinguished_name.push(DnType::CommonName, name);
        })
    }

    fn signs_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "somebody");
        params.subject_alt_names = vec![match name.contains("://") {
            true => SanType::URI(name.try_into().unwrap()),
            false => SanType::DnsName(name.try_into().unwrap()),
        }];
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// A self-signed certificate as `openssl req -x509` makes it: it claims to be a CA.
pub fn self_signed(name: &str, more: &[&str]) -> Identity {
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name).display().to_string();
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test"])
        .args(["-addext", &format!("subjectAltName=DNS:{name}")])
        .args(["-keyout", &path("key.pem"), "-out", &path("cert.pem")])
        .args(more)
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    Identity { certificate: read("cert.pem"), key: read("key.pem") }
}
