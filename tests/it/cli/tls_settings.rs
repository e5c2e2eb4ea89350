//! TLS by settings: no port serves a caller without a certificate.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::support::http::post;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, run, tidegate};

/// A policy beside an authority, a certificate for localhost and one for a caller.
fn files() -> TempDir {
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("a certificate");
    write(files.path(), "ca.pem", &authority.pem());
    let issuer = Issuer::new(params, key);
    for name in ["localhost", "envoy"] {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        write(files.path(), &format!("{name}.pem"), &certificate.pem());
        write(files.path(), &format!("{name}.key"), &key.serialize_pem());
    }
    files
}

fn write(directory: &Path, name: &str, text: &str) {
    fs::write(directory.join(name), text).expect("writable");
}

fn serving(more: &[&str]) -> Tidegate {
    let files = files();
    let path = |name: &str| files.path().join(name).display().to_string();
    let mut command = tidegate();
    command.args(["serve", "--policy", &path("policy.yaml"), "--grpc-server-use-tls"]);
    command.args(["--grpc-server-tls-cert", &path("localhost.pem")]);
    command.args(["--grpc-server-tls-key", &path("localhost.key")]);
    command.args(["--grpc-client-tls-cacert", &path("ca.pem")]).args(more);
    Tidegate::start(&mut command, files)
}

fn ask(serving: &Tidegate, with_certificate: bool) -> i32 {
    let path = |name: &str| serving.directory().join(name).display().to_string();
    let target = serving.port("grpc").to_string();
    let (ca, cert, key) = (path("ca.pem"), path("envoy.pem"), path("envoy.key"));
    let mut arguments = vec!["ask", &target, "edge", "client=ann"];
    arguments.extend(["--ca", &ca, "--server-name", "localhost"]);
    if with_certificate {
        arguments.extend(["--cert", &cert, "--key", &key]);
    }
    run(&arguments).code
}

#[test]
fn with_a_client_ca_callers_need_a_certificate_and_json_is_off() {
    let serving = serving(&["--grpc-client-tls-san", "envoy"]);
    assert_eq!(ask(&serving, true), 0);
    assert_eq!(ask(&serving, false), 69);
    let json = post(serving.port("http"), "/json", "{}");
    assert_eq!(json.status, 404);
    assert!(json.body.contains("--json on"), "{}", json.body);
}

#[test]
fn json_can_be_forced_on_beside_client_certificates() {
    assert_eq!(post(serving(&["--json", "on"]).port("http"), "/json", "{}").status, 400);
}

#[test]
fn a_certificate_with_another_name_is_rejected() {
    let serving = serving(&["--grpc-client-tls-san", "somebody-else"]);
    assert_eq!(ask(&serving, true), 69);
}

#[test]
fn client_certificates_without_tls_are_rejected() {
    let ran = run(&["serve", "--grpc-client-tls-cacert", "/ca.pem"]).with_code(64);
    assert!(ran.err.contains("--grpc-server-use-tls"), "{}", ran.err);
}

#[test]
fn certificates_without_tls_are_rejected() {
    let files = files();
    let policy = files.path().join("policy.yaml").display().to_string();
    let ports = ["--grpc-port", "0", "--http-port", "0", "--debug-port", "0"];
    let start = [&["serve", "--policy", &policy][..], &ports].concat();
    for flag in ["--grpc-server-tls-cert", "--grpc-server-tls-key"] {
        let ran = run(&[&start[..], &[flag, "/file.pem"]].concat()).with_code(64);
        assert!(ran.err.contains("add --grpc-server-use-tls"), "{flag}: {}", ran.err);
    }
    let redis = [&start[..], &["--redis-url", "127.0.0.1:1"]].concat();
    for (flag, value) in [
        ("--redis-tls-cacert", "/ca.pem"),
        ("--redis-tls-client-cert", "/cert.pem"),
        ("--redis-tls-client-key", "/key.pem"),
        ("--redis-tls-skip-hostname-verification", "true"),
    ] {
        let ran = run(&[&redis[..], &[flag, value]].concat()).with_code(64);
        assert!(ran.err.contains("add --redis-tls"), "{flag}: {}", ran.err);
    }
    let over_tls = ["--redis-url", "rediss://127.0.0.1:1", "--redis-tls-cacert", "/ca.pem"];
    let ran = run(&[&start[..], &over_tls].concat()).with_code(64);
    assert!(ran.err.contains("/ca.pem"), "only the file is missing: {}", ran.err);
}

#[test]
fn a_failed_handshake_is_logged_with_reason_and_peer_once_a_minute() {
    let serving = serving(&[]);
    for _ in 0..3 {
        assert_eq!(ask(&serving, false), 69);
    }
    let line = serving.logged_in_time("TLS handshake failed");
    assert_eq!(line["reason"], "peer sent no certificates");
    assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
    assert_eq!(line["failures"], 1);
    assert!(line["advice"].as_str().is_some_and(|text| text.contains("cacert")), "{line}");
    // `tidegate ask` looks for the reason with handshakes of another kind.
    let log = serving.log();
    assert_eq!(log.matches("peer sent no certificates").count(), 1, "{log}");
}
