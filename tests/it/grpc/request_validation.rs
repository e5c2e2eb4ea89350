//! Responses to valid requests, and the errors for invalid ones.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::grpc_client::{CallError, ResponseLimit};
use bytes::Bytes;
use tidegate::domain::RetryAfterFormat;
use tidegate::wire::ResponseSettings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::test_server::{NOW, Server, Wanted, encoded, question, soon};
use crate::support::raw_http2::{call, connect, exchange, framed, socket};

const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
const UNIMPLEMENTED: i32 = 12;
const UNAVAILABLE: i32 = 14;

#[tokio::test]
async fn a_question_is_answered_with_a_status_per_descriptor() {
    let server = Server::start();
    let mut asked = question("edge");
    asked.descriptors.push(asked.descriptors[0].clone());
    let told = server.client().await.send(&asked).await.unwrap();
    assert_eq!((told.refused, told.code, told.statuses.len()), (false, "OK", 2));
    let limit = ResponseLimit {
        name: "per-ip".to_owned(),
        requests_per_unit: 5,
        unit: "MINUTE",
        unit_multiplier: 15,
    };
    assert_eq!(told.statuses[0].limit, Some(limit));
    assert_eq!((told.statuses[0].remaining, told.statuses[0].reset_seconds), (4, Some(2)));
    assert_eq!((told.headers, told.body, told.metadata), (vec![], vec![], None));
    assert!(server.bench.moments.lock().unwrap().contains(&NOW));
    server.left().await;
}

#[tokio::test]
async fn a_refusal_is_an_answer_with_metadata_and_what_settings_ask_for() {
    let response_config = ResponseSettings {
        x_rate_limit: true,
        retry_after: Some(RetryAfterFormat::Seconds),
        body: true,
        ..ResponseSettings::default()
    };
    let server = Wanted { response_config, ..Wanted::default() }.start();
    let told = server.client().await.send(&question("refuse")).await.unwrap();
    assert_eq!((told.refused, told.code), (true, "OVER_LIMIT"));
    let names: Vec<_> =
        told.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let expected = [
        "X-RateLimit-Limit: 5",
        "X-RateLimit-Remaining: 0",
        "X-RateLimit-Reset: 2",
        "Retry-After: 2",
        "content-type: application/json",
    ];
    assert_eq!(names, expected);
    let body: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!(body["retry_after_seconds"], 2);
    let metadata = told.metadata.unwrap();
    let ours =
        serde_json::json!({"limited_by": "per-ip", "retry_after_ms": 1500, "source": "memory"});
    assert_eq!(metadata["tidegate"], ours);
    server.left().await;
}

#[tokio::test]
async fn a_request_at_fault_is_invalid_and_never_judged() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let status = async |message: &[u8]| {
        let answer = exchange(&connection, call(), framed(message)).await.unwrap();
        assert_eq!(answer.http_status, 200);
        (answer.grpc_status, answer.grpc_message.replace("%20", " "))
    };
    let fault = |why: &str| (INVALID_ARGUMENT, why.to_owned());
    assert_eq!(status(b"").await, fault("domain must not be empty"));
    assert_eq!(status(b"\x0a\x01d").await, fault("descriptors must not be empty"));
    assert_eq!(status(b"\xff").await, fault("the message is not an encoded RateLimitRequest"));
    let many = [b"\x0a\x01d".to_vec(), [0x12, 0].repeat(2_049)].concat();
    assert_eq!(status(&many).await, fault("descriptors: at most 2048 in one request"));
    let long = vec![0; 1_048_577];
    assert_eq!(status(&long).await, fault("the message is longer than 1048576 bytes"));
    assert_eq!(server.judged(), 0);
    assert_eq!(status(&encoded("edge")).await, (0, String::new()));
    assert_eq!(server.judged(), 1);
    server.left().await;
}

#[tokio::test]
async fn a_value_of_any_bytes_and_forty_kilobytes_is_decided_like_any_other() {
    let server = Server::start();
    let mut client = server.client().await;
    for value in [b"\xff\xfe\0\r\n".to_vec(), vec![b'x'; 40_000], vec![0xff; 300_000]] {
        let mut asked = question("refuse");
        asked.descriptors[0].entries[0].1 = value;
        assert!(client.send(&asked).await.unwrap().refused);
    }
    server.left().await;
}

#[tokio::test]
async fn a_message_in_pieces_is_read_as_one() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let mut send = connection.clone().ready().await.unwrap();
    let (response, mut stream) = send.send_request(call().body(()).unwrap(), false).unwrap();
    for byte in framed(&encoded("edge")) {
        stream.send_data(Bytes::from(vec![byte]), false).unwrap();
    }
    stream.send_data(Bytes::new(), true).unwrap();
    let mut body = soon("an answer", response).await.unwrap().into_body();
    assert!(body.data().await.unwrap().unwrap().len() > 5);
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    server.left().await;
}

#[tokio::test]
async fn what_is_no_unary_call_of_grpc_gets_the_status_that_says_so() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let mut compressed = framed(&encoded("edge")).to_vec();
    compressed[0] = 1;
    let short = framed(&encoded("edge")).split_to(9);
    let two = Bytes::from([framed(&encoded("edge")), framed(&encoded("edge"))].concat());
    let grpc =
        async |request, body| exchange(&connection, request, body).await.unwrap().grpc_status;
    assert_eq!(grpc(call(), compressed.into()).await, UNIMPLEMENTED);
    assert_eq!(grpc(call(), short).await, INVALID_ARGUMENT);
    assert_eq!(grpc(call(), two).await, INVALID_ARGUMENT);
    assert_eq!(grpc(call(), Bytes::new()).await, INVALID_ARGUMENT);
    for path in ["/", "/nothing/At", "/envoy.service.ratelimit.v3.RateLimitService/Other"] {
        let request = call().uri(format!("http://tidegate{path}"));
        assert_eq!(grpc(request, framed(b"")).await, UNIMPLEMENTED, "{path}");
    }
    let http =
        async |request| exchange(&connection, request, framed(b"")).await.unwrap().http_status;
    let json = http::Request::builder().method("POST").uri(call().uri_ref().unwrap().clone());
    assert_eq!(http(json.header("content-type", "application/json")).await, 415);
    assert_eq!(http(call().method("GET")).await, 405);
    assert_eq!(server.judged(), 0);
    server.left().await;
}

#[tokio::test]
async fn a_caller_of_http_1_is_closed() {
    let server = Server::start();
    let mut socket = socket(server.address).await;
    socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = soon("the end", socket.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
    server.left().await;
}

#[tokio::test]
async fn a_deadline_that_is_over_consumes_nothing_and_a_malformed_one_is_ignored() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let status = async |timeout: &str| {
        let request = call().header("grpc-timeout", timeout);
        exchange(&connection, request, framed(&encoded("edge"))).await.unwrap().grpc_status
    };
    for over in ["0n", "0m", "0S", "1u", "999n"] {
        assert_eq!(status(over).await, DEADLINE_EXCEEDED, "{over}");
    }
    assert_eq!(server.judged(), 0);
    for ignored in ["20", "soon", "-1m", "123456789m", "20m20m"] {
        assert_eq!(status(ignored).await, 0, "{ignored}");
    }
    assert_eq!(status("20S").await, 0);
    server.left().await;
}

#[tokio::test]
async fn ten_microseconds_are_time_enough_for_a_decision_that_needs_no_store() {
    let server = Server::start();
    let bench = std::sync::Arc::clone(&server.bench);
    let clock = tidegate::clock::Clock::default();
    let service =
        tidegate::server::RlsService::new(bench, clock, tidegate::wire::ResponseConfig::default());
    let ask = async |deadline| {
        let answer = service.answer_encoded(&encoded("edge"), Some(deadline)).await;
        answer.map(drop).map_err(|status| status.code() as i32)
    };
    assert_eq!(ask(Duration::from_nanos(9_999)).await, Err(DEADLINE_EXCEEDED));
    assert_eq!(ask(Duration::from_micros(10)).await, Ok(()));
    assert_eq!(server.judged(), 1);
    server.left().await;
}

#[tokio::test]
async fn a_decision_that_takes_longer_than_the_caller_waits_exceeds_its_deadline() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let request = call().header("grpc-timeout", "20m");
    let answer = exchange(&connection, request, framed(&encoded("wait"))).await.unwrap();
    assert_eq!(answer.grpc_status, DEADLINE_EXCEEDED);
    server.left().await;
}

#[tokio::test]
async fn a_store_that_gave_no_answer_makes_the_service_unavailable() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let answer = exchange(&connection, call(), framed(&encoded("unavailable"))).await.unwrap();
    assert_eq!(answer.grpc_status, UNAVAILABLE);
    let refused = server.client().await.send(&question("unavailable")).await.unwrap_err();
    assert!(matches!(refused, CallError::Status(_)));
    server.left().await;
}

#[tokio::test]
async fn a_caller_that_leaves_ends_its_call_and_no_other() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let mut send = connection.clone().ready().await.unwrap();
    let (response, mut stream) = send.send_request(call().body(()).unwrap(), false).unwrap();
    stream.send_data(framed(&encoded("wait")), true).unwrap();
    super::test_server::until("the call is judged", || server.judged() == 1).await;
    stream.send_reset(h2::Reason::CANCEL);
    drop(response);
    let answer = exchange(&connection, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    assert_eq!(server.left().await, 0);
}

#[tokio::test]
async fn json_is_answered_as_the_reference_server_answers_it() {
    let server = Server::start();
    let bench = std::sync::Arc::clone(&server.bench);
    let clock = tidegate::clock::Clock::default();
    let service =
        tidegate::server::RlsService::new(bench, clock, tidegate::wire::ResponseConfig::default());
    let ask = async |domain: &str| {
        let body = format!(
            r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"a","value":"b"}}]}}]}}"#
        );
        service.answer_json(body.as_bytes()).await
    };
    let passed = ask("edge").await;
    assert_eq!(passed.status, 200);
    let value: serde_json::Value = serde_json::from_str(&passed.body).unwrap();
    let status = serde_json::json!({
        "code": "OK",
        "currentLimit": {"requestsPerUnit": 5, "unit": "MINUTE", "name": "per-ip", "unitMultiplier": 15},
        "limitRemaining": 4,
        "durationUntilReset": "2s",
    });
    assert_eq!(value, serde_json::json!({"overallCode": "OK", "statuses": [status]}));
    assert_eq!(ask("refuse").await.status, 429);
    assert_eq!(ask("unavailable").await.status, 503);
    assert_eq!(ask("").await.status, 400);
    assert_eq!(service.answer_json(b"{").await.status, 400);
    assert_eq!(server.bench.judged.load(Ordering::SeqCst), 3);
    server.left().await;
}
