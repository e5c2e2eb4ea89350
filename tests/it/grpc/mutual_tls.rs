//! TLS: certificates on both sides, which callers are authorized, and replacing all of it while
//! serving.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::grpc_client::{CallError, Client, ClientSettings, ClientTls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tidegate::server::{Tls, TlsMaterial};
use tidegate::tls::TlsError;
use tokio::io::AsyncReadExt as _;

use super::test_server::{NOW, Server, Wanted, question, soon, until};
use crate::support::raw_http2::socket;

/// An authority and what it signs.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key for a name.
    fn signs(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let params = if name.contains("://") {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
            params
        } else {
            CertificateParams::new(vec![name.to_owned()]).unwrap()
        };
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }

    fn serves(&self, allowed: &[&str]) -> TlsMaterial {
        let (certificate, private_key) = self.signs("tidegate.test");
        TlsMaterial {
            certificate,
            private_key,
            client_authority: Some(self.certificate.clone().into_bytes()),
            allowed_callers: allowed.iter().map(|&name| name.to_owned()).collect(),
            grants: Vec::new(),
        }
    }
}

fn start(material: &TlsMaterial) -> (Server, Tls) {
    let tls = Tls::new(material).unwrap();
    let mut wanted = Wanted { tls: Some(tls.clone()), ..Wanted::default() };
    wanted.limits.handshake_timeout = Duration::from_secs(10);
    (wanted.start(), tls)
}

/// Whether a caller with that identity gets an answer.
async fn may_ask(
    server: &Server,
    authority: &Authority,
    identity: Option<(Vec<u8>, Vec<u8>)>,
) -> bool {
    let settings = ClientSettings {
        target: server.address.to_string(),
        timeout: Some(Duration::from_secs(10)),
        tls: Some(ClientTls {
            authority: authority.certificate.clone().into_bytes(),
            identity,
            server_name: Some("tidegate.test".to_owned()),
        }),
    };
    match soon("connecting", Client::connect(&settings)).await {
        Ok(mut client) => soon("an answer", client.send(&question("edge"))).await.is_ok(),
        Err(CallError::Connect(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_caller_needs_a_certificate_of_the_authority_if_there_is_one() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (server, _) = start(&ours.serves(&[]));
    assert!(may_ask(&server, &ours, Some(ours.signs("gateway.test"))).await);
    assert!(!may_ask(&server, &ours, Some(theirs.signs("gateway.test"))).await);
    assert!(!may_ask(&server, &ours, None).await);
    assert!(!may_ask(&server, &theirs, Some(ours.signs("gateway.test"))).await);
    assert!(server.traffic.handshakes_failed.load(Ordering::SeqCst) >= 2);
    server.left().await;
}

#[tokio::test]
async fn without_an_authority_any_caller_may_come_over_tls_and_none_in_plaintext() {
    let ours = Authority::new();
    let (server, _) = start(&TlsMaterial { client_authority: None, ..ours.serves(&[]) });
    assert!(may_ask(&server, &ours, None).await);
    let plain = ClientSettings { target: server.address.to_string(), ..Default::default() };
    let plain = match Client::connect(&plain).await {
        Ok(mut client) => client.send(&question("edge")).await.is_ok(),
        Err(_) => false,
    };
    assert!(!plain);
    server.left().await;
}

#[tokio::test]
async fn only_callers_on_the_list_may_come_by_dns_name_or_uri() {
    let ours = Authority::new();
    let (server, _) = start(&ours.serves(&["gateway.test", "spiffe://mesh/edge"]));
    assert!(may_ask(&server, &ours, Some(ours.signs("Gateway.test"))).await);
    assert!(may_ask(&server, &ours, Some(ours.signs("spiffe://mesh/edge"))).await);
    assert!(!may_ask(&server, &ours, Some(ours.signs("other.test"))).await);
    assert!(!may_ask(&server, &ours, Some(ours.signs("spiffe://mesh/other"))).await);
    server.left().await;
}

#[tokio::test]
async fn material_is_replaced_while_serving_and_bad_material_is_not_taken() {
    let (old, new) = (Authority::new(), Authority::new());
    let (server, tls) = start(&old.serves(&[]));
    assert!(may_ask(&server, &old, Some(old.signs("a.test"))).await);
    let bad = TlsMaterial { private_key: b"nonsense".to_vec(), ..new.serves(&[]) };
    assert!(matches!(tls.replace(&bad, NOW), Err(TlsError::PrivateKey)));
    assert!(may_ask(&server, &old, Some(old.signs("a.test"))).await);
    tls.replace(&new.serves(&[]), NOW).unwrap();
    assert!(!may_ask(&server, &old, Some(old.signs("a.test"))).await);
    assert!(may_ask(&server, &new, Some(new.signs("a.test"))).await);
    server.left().await;
}

#[test]
fn material_that_cannot_be_used_is_named() {
    let ours = Authority::new();
    let error = |change: fn(&mut TlsMaterial)| {
        let mut material = ours.serves(&[]);
        change(&mut material);
        Tls::new(&material).unwrap_err()
    };
    assert!(matches!(error(|m| m.certificate.clear()), TlsError::Certificate));
    assert!(matches!(error(|m| m.private_key.clear()), TlsError::PrivateKey));
    assert!(matches!(error(|m| m.client_authority = Some(vec![])), TlsError::Authority));
    let orphan = error(|m| {
        m.client_authority = None;
        m.allowed_callers = vec!["a".to_owned()];
    });
    assert!(matches!(orphan, TlsError::AllowListWithoutAuthority));
    let (_, other_key) = ours.signs("b.test");
    let mismatch = TlsMaterial { private_key: other_key, ..ours.serves(&[]) };
    assert!(matches!(Tls::new(&mismatch), Err(TlsError::KeyMismatch)));
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_not_waited_for() {
    let ours = Authority::new();
    let mut wanted =
        Wanted { tls: Some(Tls::new(&ours.serves(&[])).unwrap()), ..Wanted::default() };
    wanted.limits.handshake_timeout = Duration::from_millis(50);
    let server = wanted.start();
    let mut silent = socket(server.address).await;
    assert_eq!(soon("the end", silent.read(&mut [0; 64])).await.unwrap_or(0), 0);
    until("it is counted", || server.traffic.handshakes_failed.load(Ordering::SeqCst) == 1).await;
    server.left().await;
}
