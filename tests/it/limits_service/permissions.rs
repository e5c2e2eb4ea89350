//! Refunds, peeks, and limits in requests: open to every caller by default, as in
//! envoyproxy/ratelimit, closed by settings, and parts of a grant.

use prost::Message as _;
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::authorization::{counters, limits_client};
use super::messages::{CheckRequest, LimitsClient, RateLimitRequest, all, client, request};
use crate::hostile::tls_callers::serving;
use crate::support::certificate_authority::Authority;
use crate::support::http;
use crate::support::messages::rate_limit_descriptor::RateLimitOverride;
use crate::support::raw_http2::{call, exchange, framed};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};

/// A charge, and the three requests that need a permission: a refund, a peek, and a limit.
fn requests(domain: &str) -> [RateLimitRequest; 4] {
    let changed = |change: &dyn Fn(&mut RateLimitRequest)| {
        let mut request = request(domain, "client", "ann");
        change(&mut request);
        request
    };
    [
        changed(&|_| {}),
        changed(&|request| request.descriptors[0].is_negative_hits = true),
        changed(&|request| request.descriptors[0].hits_addend = Some(0)),
        changed(&|request| {
            let limit = RateLimitOverride { requests_per_unit: 9, unit: 4, ..Default::default() };
            request.descriptors[0].limit = Some(limit);
        }),
    ]
}

/// Whether each of [`requests`] is decided.
async fn decided(client: &mut LimitsClient<Channel>, domain: &str) -> [bool; 4] {
    let requests = requests(domain).map(|request| request.encode_to_vec().into());
    let answer = client.check(CheckRequest { requests: requests.to_vec() }).await.unwrap();
    let said = all(&answer.into_inner().results).try_into();
    <[String; 4]>::map(said.unwrap(), |said| match said.as_str() {
        "OK" => true,
        "PermissionDenied" => false,
        other => panic!("{other}"),
    })
}

fn permitted(result: Result<(), Status>) -> bool {
    result.map_err(|status| assert_eq!(status.code(), Code::PermissionDenied)).is_ok()
}

/// Whether the caller may use `Peek`, `ReadCounters`, `Refund`, and `ResetCounters`.
async fn methods(client: &mut LimitsClient<Channel>, domain: &str) -> [bool; 4] {
    let one = || request(domain, "client", "ann");
    [
        permitted(client.peek(one()).await.map(drop)),
        permitted(client.read_counters(counters(domain)).await.map(drop)),
        permitted(client.refund(one()).await.map(drop)),
        permitted(client.reset_counters(counters(domain)).await.map(drop)),
    ]
}

#[tokio::test]
async fn refunds_peeks_and_request_limits_are_open_until_a_setting_closes_each() {
    for (closed, requests_decided, methods_permitted) in [
        ("peeks", [true, true, false, true], [false, false, true, true]),
        ("refunds", [true, false, true, true], [true, true, false, false]),
        ("request-limits", [true, true, true, false], [true; 4]),
    ] {
        let flag = format!("--{closed}");
        for (value, [requests, methods_permitted]) in
            [("true", [[true; 4]; 2]), ("false", [requests_decided, methods_permitted])]
        {
            let arguments = ["--counter-access", "write", &flag, value];
            let server = Tidegate::policy(FIVE_A_DAY, &arguments);
            let mut client = client(server.port("grpc")).await;
            assert_eq!(decided(&mut client, "edge").await, requests, "{flag} {value}");
            assert_eq!(methods(&mut client, "edge").await, methods_permitted, "{flag} {value}");
        }
    }
}

#[test]
fn json_has_the_permissions_of_callers_without_a_grant() {
    let refund = r#"{"domain": "edge", "descriptors": [{"isNegativeHits": true,
        "entries": [{"key": "client", "value": "ann"}]}]}"#;
    let open = Tidegate::policy(FIVE_A_DAY, &[]);
    assert_eq!(http::post(open.port("http"), "/json", refund).status, 200);
    let closed = Tidegate::policy(FIVE_A_DAY, &["--refunds", "false"]);
    let reply = http::post(closed.port("http"), "/json", refund);
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("--refunds"), "{}", reply.body);
    let metrics = http::get(closed.port("http"), "/metrics").body;
    let counted = "tidegate_invalid_calls_total{reason=\"permission\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn a_request_without_its_permission_charges_nothing() {
    let both = r#"{"domain": "edge", "descriptors": [
        {"entries": [{"key": "client", "value": "ann"}]},
        {"isNegativeHits": true, "entries": [{"key": "client", "value": "bob"}]}]}"#;
    let closed = Tidegate::policy(FIVE_A_DAY, &["--refunds", "false"]);
    assert_eq!(http::post(closed.port("http"), "/json", both).status, 400);
    assert!(closed.ask("ann").contains("4 left"));
}

#[tokio::test]
async fn the_unix_socket_has_the_permissions_of_callers_without_a_grant() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket").display().to_string();
    let serving = Tidegate::policy(FIVE_A_DAY, &["--grpc-uds", &path, "--refunds", "false"]);
    let socket = UnixStream::connect(&path).await.unwrap();
    let (connection, driver) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(driver);
    for (request, code) in
        requests("edge").iter().zip([Code::Ok, Code::PermissionDenied, Code::Ok, Code::Ok])
    {
        let body = framed(&request.encode_to_vec());
        let answer = exchange(&connection, call(), body).await.unwrap();
        assert_eq!(answer.grpc_status, code as i32);
    }
    drop(serving);
}

#[tokio::test]
async fn a_grant_names_what_its_caller_may_do_beyond_charging() {
    let ours = Authority::new();
    let grants = "edge=plain.test,ops.test:peek,refund,limits; pay=ops.test:refund";
    let arguments = ["--grpc-client-domains", grants, "--counter-access", "write"];
    let (serving, _secret) = serving(&ours, &arguments);
    let mut plain = limits_client(&serving, &ours, "plain.test").await;
    assert_eq!(decided(&mut plain, "edge").await, [true, false, false, false]);
    assert_eq!(methods(&mut plain, "edge").await, [false; 4]);
    let mut ops = limits_client(&serving, &ours, "ops.test").await;
    assert_eq!(decided(&mut ops, "edge").await, [true; 4]);
    assert_eq!(methods(&mut ops, "edge").await, [true; 4]);
    assert_eq!(decided(&mut ops, "pay").await, [true, true, false, false]);
    assert_eq!(methods(&mut ops, "pay").await, [false, false, true, true]);
}
