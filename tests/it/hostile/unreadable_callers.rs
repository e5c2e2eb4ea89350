//! Callers that cannot be understood: each kind is counted, and logged at most once a minute with the
//! way out. Probes that only connect are not warned of.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::Value;

use super::target::target;
use super::tls_callers::{SERVER, fate, serving};
use crate::support::certificate_authority::Authority;
use crate::support::http;
use crate::support::raw_http2::{call, connect, exchange};
use crate::support::tidegate_process::{Tidegate, metric};
use crate::support::wait::until;

const HTTP1: &[u8] = b"POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
const PROXY_V1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
const PROXY_V2: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\0\x01\0\x02";
const REDIS: &[u8] = b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n";
const SSH: &[u8] = b"SSH-2.0-OpenSSH_9.6\r\n";
const RANDOM: &[u8] = b"\x00\x8f\xff\x01 something";

/// Sends bytes on a connection of its own and waits until the server closes it.
fn send(address: SocketAddr, bytes: &[u8]) {
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.write_all(bytes).expect("it reads");
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket.read_to_end(&mut Vec::new());
}

/// The counts that are not 0, by kind.
fn counts(serving: &Tidegate) -> BTreeMap<String, u64> {
    let page = http::get(serving.port("http"), "/metrics").body;
    let rows = page.lines().filter_map(|line| {
        let (kind, count) =
            line.strip_prefix("tidegate_unreadable_callers_total{kind=\"")?.split_once("\"} ")?;
        Some((kind.to_owned(), count.parse().expect("a number")))
    });
    rows.filter(|(_, count)| *count > 0).collect()
}

/// The log lines about callers, by kind.
fn lines(serving: &Tidegate) -> BTreeMap<String, Vec<Value>> {
    let mut lines = BTreeMap::<_, Vec<_>>::new();
    for line in serving.log().lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let message = line["message"].as_str().unwrap_or_default();
        if ["callers cannot be understood", "TLS handshake failed"].contains(&message) {
            lines.entry(line["kind"].as_str().expect("a kind").to_owned()).or_default().push(line);
        }
    }
    lines
}

/// Waits until the kinds have these counts or, for clients that try again, at least these. Checks that
/// each kind has one line, with this advice.
fn assert_told(serving: &Tidegate, is_exact: bool, expected: &[(&str, u64, &str)]) {
    until(&format!("{expected:?}"), || {
        let counts = counts(serving);
        let is_met = |(kind, wanted, _): &(&str, u64, &str)| {
            counts.get(*kind).is_some_and(|count| count == wanted || !is_exact && count > wanted)
        };
        (counts.len() == expected.len() && expected.iter().all(is_met)).then_some(())
    });
    let lines = lines(serving);
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (kind, _, advice) in expected {
        let [line] = &lines[*kind][..] else { panic!("{kind}: {:?}", lines[*kind]) };
        assert_eq!(line["level"], "WARN", "{line}");
        assert!(line["advice"].as_str().is_some_and(|text| text.contains(advice)), "{line}");
        assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
    }
}

#[test]
fn other_protocols_are_counted_and_told_the_way_out_once() {
    let (serving, grpc) = target(&[]);
    let (http, debug) = (serving.port("http"), serving.port("debug"));
    for bytes in [HTTP1, UPGRADE, CLIENT_HELLO, PROXY_V1, PROXY_V2, REDIS, SSH, RANDOM] {
        send(grpc, bytes);
    }
    for port in [http, debug] {
        for bytes in [PREFACE, CLIENT_HELLO, PROXY_V1, PROXY_V2, REDIS, SSH, RANDOM] {
            send(port, bytes);
        }
    }
    assert_told(
        &serving,
        true,
        &[
            ("http1", 2, "http2_protocol_options"),
            ("tls", 3, "transport_socket"),
            ("proxy_protocol", 6, "PROXY protocol"),
            ("redis", 3, "address of Redis"),
            ("other_bytes", 6, "peer"),
            ("http2_on_http_port", 2, "gRPC port"),
        ],
    );
    assert_eq!(metric(&serving, "prefaces_failed_total"), 8);
    assert!(serving.ask("ann").contains("OK"), "others are served");
}

#[test]
fn probes_and_callers_that_are_right_are_not_warned_of() {
    let (serving, grpc) = target(&[]);
    let (http, debug) = (serving.port("http"), serving.port("debug"));
    for port in [grpc, http, debug] {
        send(port, b"");
    }
    send(grpc, &PREFACE[..20]);
    send(http, HTTP1);
    send(debug, b"HEAD / HTTP/1.0\r\n\r\n");
    until("both are closed", || (metric(&serving, "prefaces_failed_total") == 2).then_some(()));
    assert!(serving.ask("ann").contains("OK"));
    assert_eq!((counts(&serving), lines(&serving)), Default::default());
}

#[tokio::test]
async fn calls_of_other_services_are_counted_and_told_the_way_out_once() {
    let (serving, grpc) = target(&[]);
    let connection = connect(grpc).await;
    let long = format!("/x.Y/{}", "z".repeat(1_000));
    for (path, content_type, times) in [
        ("/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit", "application/grpc", 3),
        ("/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit", "application/grpc", 1),
        (&*long, "application/grpc", 1),
        ("/envoy.service.auth.v3.Authorization/Check", "application/grpc", 1),
        ("/envoy.service.ratelimit.v3.RateLimitService/X", "application/grpc", 1),
        ("/tidegate.v1.Limits/X", "application/grpc", 1),
        ("/grpc.health.v1.Health/X", "application/grpc", 1),
        ("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "application/json", 2),
        ("/", "application/grpc-web+proto", 2),
    ] {
        for _ in 0..times {
            let uri = format!("http://tidegate{path}");
            let request = http_request().uri(uri).header("content-type", content_type);
            exchange(&connection, request, Bytes::from_static(b"\0\0\0\0\0")).await.unwrap();
        }
    }
    // Those are right.
    let health = call().uri("http://tidegate/grpc.health.v1.Health/Check");
    exchange(&connection, health, Bytes::from_static(b"\0\0\0\0\0")).await.unwrap();
    assert_told(
        &serving,
        true,
        &[
            ("rls_v2", 4, "transport_api_version: V3"),
            ("unknown_method", 5, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
            ("not_grpc", 2, "HTTP port"),
            ("grpc_web", 2, "/json"),
        ],
    );
    let called = lines(&serving)["unknown_method"][0]["called"].as_str().unwrap().to_owned();
    assert_eq!(called, long[..64], "cut");
}

fn http_request() -> ::http::request::Builder {
    ::http::Request::builder().method("POST")
}

#[tokio::test]
async fn callers_without_tls_or_with_the_wrong_one_are_told_what_is_missing() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (serving, _secret) = serving(&ours, &[]);
    let grpc = serving.port("grpc");
    for bytes in [PREFACE, HTTP1, PROXY_V2, REDIS, SSH, b""] {
        send(grpc, bytes);
    }
    let client = ours.signs("gateway.test");
    assert_eq!(fate(&serving, &ours.certificate, None, "edge").await, "no connection");
    assert_eq!(fate(&serving, &theirs.certificate, Some(&client), "edge").await, "no connection");
    offer_http1_only(grpc);
    send(grpc, CLIENT_HELLO);
    assert_told(
        &serving,
        false,
        &[
            ("plaintext", 2, "transport_socket"),
            ("proxy_protocol", 1, "PROXY protocol"),
            ("redis", 1, "address of Redis"),
            ("other_bytes", 1, "peer"),
            ("client_certificate", 1, "--grpc-client-tls-cacert"),
            ("server_certificate", 1, "trusted_ca"),
            ("no_http2_in_tls", 1, "http2_protocol_options"),
            ("handshake", 1, "reason"),
        ],
    );
    assert!(metric(&serving, "handshakes_failed_total") >= 10, "the probe counts there");
    assert_eq!(fate(&serving, &ours.certificate, Some(&client), "edge").await, "OK");
}

/// A handshake of a client that speaks HTTP/1.1 over TLS.
fn offer_http1_only(address: SocketAddr) {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("versions");
    let config = config.with_root_certificates(RootCertStore::empty());
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(SERVER).expect("a name");
    let mut connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut socket = TcpStream::connect(address).expect("it listens");
    let failed = connection.complete_io(&mut socket).expect_err("no protocol in common");
    assert!(failed.to_string().contains("NoApplicationProtocol"), "{failed}");
}
