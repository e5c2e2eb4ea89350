//! Rotated passwords, TLS with a private authority, client certificates.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use redis::Value;
use tidegate::domain::{ExecutionStatus, FailureKind};
use tidegate::store::redis::client::config::{
    Address, Auth, Password, RedisConfig, RedisConfigError, TopologyConfig,
};
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::tls::{CertificateReader, ClientCertificates};

use super::counting_load::{COUNT, Load, config, count_one, open, records, total};
use crate::support::acl;
use crate::support::certificate_authority::{Identity, self_signed};
use crate::support::redis_server::{PATIENCE, Server, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_password_takes_effect_without_a_restart() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let file = Arc::new(Mutex::new(Some(acl::PASSWORD.to_owned())));
    let asked = Arc::clone(&file);
    let password = Password::Reloaded(Arc::new(move || asked.lock().unwrap().clone()));
    let auth = Auth { user: Some(acl::USER.into()), password };
    let connections =
        open(RedisConfig { auth, ..config(TopologyConfig::Single, &[&server]) }).await;
    let load = Load::start(connections, records(2));
    load.progress("every key is charged", |_| true, 5).await;
    server.ask(&["ACL", "SETUSER", acl::USER, "resetpass", ">the-next-one"]);
    load.progress("connections that are logged in live on", |_| true, 5).await;
    server.ask(&["CLIENT", "KILL", "USER", acl::USER]);
    until("new ones are refused", || total(load.connections(), |node| &node.connect_failures) > 0)
        .await;
    *file.lock().unwrap() = Some("the-next-one".to_owned());
    load.progress("the new password is used", |_| true, 5).await;
    load.stop(true).await;
}

/// An authority, and certificates that it signed.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer }
    }

    fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate and its key, as PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // Or it would look self-signed: the default name is the authority's too.
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// A server that speaks TLS only and demands a client certificate.
fn tls_server(authority: &Authority, name: &str, dir: &tempfile::TempDir) -> Server {
    let (certificate, key) = authority.sign(name);
    tls_server_with(&authority.pem(), &Identity { certificate, key }, dir)
}

fn tls_server_with(authority: &str, identity: &Identity, dir: &tempfile::TempDir) -> Server {
    let write = |file: &str, text: &str| {
        let path = dir.path().join(file);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    Server::start(&[
        &acl::line(acl::SINGLE),
        "port 0",
        "tls-port {port}",
        "tls-auth-clients yes",
        &format!("tls-ca-cert-file {}", write("ca.pem", authority)),
        &format!("tls-cert-file {}", write("cert.pem", &identity.certificate)),
        &format!("tls-key-file {}", write("key.pem", &identity.key)),
    ])
}

fn over_tls(server: &Server, host: &str, tls: ClientCertificates) -> RedisConfig {
    RedisConfig {
        addresses: vec![Address::Tcp(host.into(), server.port)],
        tls: Some(tls),
        // The handshake of an unoptimised build on a busy machine.
        connect_timeout: Duration::from_secs(5),
        ..config(TopologyConfig::Single, &[server])
    }
}

fn client(authority: &Authority) -> Option<(Vec<u8>, Vec<u8>)> {
    let (certificate, key) = authority.sign("tidegate");
    Some((certificate.into_bytes(), key.into_bytes()))
}

async fn is_refused(config: RedisConfig) {
    let connections = RedisClient::open(config, vec![&COUNT]).unwrap();
    until("the dial fails", || total(&connections, |node| &node.connect_failures) > 0).await;
    let refused =
        SendError { executed: ExecutionStatus::NotExecuted, kind: FailureKind::NotConnected };
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Err(refused));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_works_with_a_private_authority_and_a_client_certificate() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let server = tls_server(&ours, "localhost", &dir);
    let good = || ClientCertificates {
        authority: Some(ours.pem().into_bytes()),
        identity: client(&ours),
        skip_hostname: false,
    };
    let connections = open(over_tls(&server, "localhost", good())).await;
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(1)));

    let foreign = ClientCertificates { authority: Some(theirs.pem().into_bytes()), ..good() };
    is_refused(over_tls(&server, "localhost", foreign)).await;
    is_refused(over_tls(&server, "localhost", ClientCertificates { identity: None, ..good() }))
        .await;
    is_refused(over_tls(
        &server,
        "localhost",
        ClientCertificates { identity: client(&theirs), ..good() },
    ))
    .await;

    is_refused(over_tls(&server, "127.0.0.1", good())).await;
    let careless = ClientCertificates { skip_hostname: true, ..good() };
    let connections = open(over_tls(&server, "127.0.0.1", careless)).await;
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_works_with_a_self_signed_certificate_that_is_itself_trusted() {
    let ours = self_signed("localhost", &["-days", "2"]);
    let unknown = self_signed("localhost", &["-days", "2"]);
    let dir = tempfile::tempdir().unwrap();
    let server = tls_server_with(&ours.certificate, &ours, &dir);
    let trusting = |trusted: &Identity| ClientCertificates {
        authority: Some(trusted.certificate.clone().into_bytes()),
        identity: Some((ours.certificate.clone().into_bytes(), ours.key.clone().into_bytes())),
        skip_hostname: false,
    };
    let connections = open(over_tls(&server, "localhost", trusting(&ours))).await;
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(1)));

    is_refused(over_tls(&server, "localhost", trusting(&unknown))).await;
    is_refused(over_tls(&server, "127.0.0.1", trusting(&ours))).await;
    let careless = ClientCertificates { skip_hostname: true, ..trusting(&ours) };
    let connections = open(over_tls(&server, "127.0.0.1", careless)).await;
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(2)));
    let careless = ClientCertificates { skip_hostname: true, ..trusting(&unknown) };
    is_refused(over_tls(&server, "localhost", careless)).await;

    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
    let certificate = params.self_signed(&key).unwrap().pem();
    let expired = Identity { certificate, key: key.serialize_pem() };
    let server = tls_server_with(&ours.certificate, &expired, &dir);
    is_refused(over_tls(&server, "localhost", trusting(&expired))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_connections_use_replaced_certificates_and_invalid_ones_are_ignored() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let server = tls_server(&ours, "localhost", &dir);
    let with = |identity| ClientCertificates {
        authority: Some(ours.pem().into_bytes()),
        identity,
        skip_hostname: false,
    };
    let files = Arc::new(Mutex::new(Some(with(client(&ours)))));
    let asked = Arc::clone(&files);
    let config = RedisConfig {
        tls_reloader: Some(CertificateReader::new(move || asked.lock().unwrap().clone())),
        reply_timeout: Duration::from_millis(100),
        ..over_tls(&server, "localhost", with(client(&ours)))
    };
    let connections = open(config).await;
    let connects = || total(&connections, |node| &node.connects);
    // A silent server's connections are dropped and made anew. Only one that is open can be: of
    // those before, some may still be on their way.
    let anew = async || {
        let answers = async {
            while count_one(&connections, "tg1z:{a}").await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, answers).await.expect("a connection answers");
        let (losses, before) = (total(&connections, |node| &node.losses), connects());
        server.freeze();
        let asks = async {
            loop {
                let _ = count_one(&connections, "tg1z:{a}").await;
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = asks => {}
            () = until("a connection is lost", || total(&connections, |node| &node.losses) > losses) => {}
        }
        server.thaw();
        before
    };
    for bad in [None, Some(with(Some((b"no".to_vec(), b"key".to_vec()))))] {
        *files.lock().unwrap() = bad;
        let before = anew().await;
        until("the old certificates are shown", || connects() > before).await;
    }
    // ChargeRecord, for the server refuses it: another authority signed it.
    *files.lock().unwrap() = Some(with(client(&theirs)));
    let failures = total(&connections, |node| &node.connect_failures);
    anew().await;
    until("the new ones are shown", || {
        total(&connections, |node| &node.connect_failures) > failures + 1
    })
    .await;
    *files.lock().unwrap() = Some(with(client(&ours)));
    let before = connects();
    until("and those after them", || connects() > before).await;
}

#[tokio::test]
async fn an_invalid_certificate_is_rejected_at_the_start() {
    let tls = ClientCertificates {
        identity: Some((b"no".to_vec(), b"key".to_vec())),
        ..ClientCertificates::default()
    };
    let config = RedisConfig { tls: Some(tls), ..RedisConfig::default() };
    assert!(matches!(RedisClient::open(config, vec![&COUNT]), Err(RedisConfigError::Tls(_))));
    let config = RedisConfig { addresses: Vec::new(), ..RedisConfig::default() };
    let error = RedisClient::open(config, vec![&COUNT]).unwrap_err();
    assert_eq!(error, RedisConfigError::NoAddress);
}
