//! Requests that ask for too much, or for nothing.

use std::collections::BTreeSet;

use crate::support::grpc_client::CallDescriptor;
use bytes::Bytes;
use tidegate::domain::{Override, Unit};

use super::target::{asked, client, descriptor, left, question, target};
use crate::support::http::post;
use crate::support::raw_http2::{METHOD, call, connect, exchange, framed};

const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
const UNIMPLEMENTED: i32 = 12;

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut length = bytes.len();
    let mut encoded = vec![number << 3 | 2];
    while length >= 0x80 {
        encoded.push(length as u8 | 0x80);
        length >>= 7;
    }
    encoded.push(length as u8);
    encoded.extend(bytes);
    encoded
}

fn entry(key: &[u8], value: &[u8]) -> Vec<u8> {
    field(1, &[field(1, key), field(2, value)].concat())
}

/// The domain `edge` and a descriptor of these fields.
fn message(descriptor: &[u8]) -> Vec<u8> {
    [field(1, b"edge"), field(2, descriptor)].concat()
}

fn ann() -> Vec<u8> {
    entry(b"client", b"ann")
}

#[tokio::test]
async fn what_is_no_request_is_invalid_and_charges_nobody() {
    let (_serving, address) = target(&[]);
    let connection = connect(address).await;
    let unit = |unit: u8| [ann(), field(2, &[0x08, 1, 0x10, unit])].concat();
    let deep = [ann(), entry(b"a", b"b").repeat(160)].concat();
    let cases: [(&str, Vec<u8>); 13] = [
        ("nothing", Vec::new()),
        ("no domain", field(2, &ann())),
        ("no descriptors", field(1, b"edge")),
        ("a domain that is no text", [field(1, b"\xff"), field(2, &ann())].concat()),
        ("an empty key", message(&[ann(), entry(b"", b"x")].concat())),
        ("2,049 descriptors", [field(1, b"edge"), field(2, &ann()).repeat(2_049)].concat()),
        ("161 entries", message(&deep)),
        ("a unit that does not exist", message(&unit(9))),
        ("no unit", message(&unit(0))),
        ("half a message", message(&ann())[..9].to_vec()),
        ("groups in groups", vec![0x0b; 4_096]),
        ("more than 1 MiB", message(&entry(b"client", &vec![b'x'; 1 << 20]))),
        ("more than 65,536 fields", [message(&ann()), [0x20, 0].repeat(65_536)].concat()),
    ];
    for (what, message) in cases {
        let answer = exchange(&connection, call(), framed(&message)).await.unwrap();
        assert_eq!(answer.grpc_status, INVALID_ARGUMENT, "{what}: {answer:?}");
        assert!(!answer.grpc_message.is_empty(), "{what}");
    }
    assert_eq!(left(&mut client(address).await, "ann").await, 5);
}

#[tokio::test]
async fn what_is_no_call_gets_the_status_that_says_so_and_is_not_unpacked() {
    let (serving, address) = target(&[]);
    let connection = connect(address).await;
    // Four kilobytes that would be four megabytes, and say so.
    let mut packed = framed(&[0; 4_096]).to_vec();
    packed[0] = 1;
    let gzip = call().header("grpc-encoding", "gzip");
    let answer = exchange(&connection, gzip, packed.into()).await.unwrap();
    assert_eq!(answer.grpc_status, UNIMPLEMENTED);
    let elsewhere = call().uri("http://tidegate/envoy.service.ratelimit.v3.RateLimitService/X");
    let answer = exchange(&connection, elsewhere, framed(b"")).await.unwrap();
    assert_eq!(answer.grpc_status, UNIMPLEMENTED);
    let uri = format!("http://tidegate{METHOD}");
    let json = http_request().uri(uri).header("content-type", "application/json");
    let answer = exchange(&connection, json, Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!(answer.http_status, 415);
    for body in ["", "{", "[]", "{\"domain\":1}", "{\"domain\":\"edge\"}", &"[".repeat(100_000)] {
        assert_eq!(post(serving.port("http"), "/json", body).status, 400);
    }
    assert_eq!(left(&mut client(address).await, "ann").await, 5);
}

fn http_request() -> http::request::Builder {
    http::Request::builder().method("POST")
}

#[tokio::test]
async fn hits_beyond_any_limit_are_refused_without_a_trace_or_a_wait() {
    let (_serving, address) = target(&[]);
    let mut client = client(address).await;
    for hits in [6, u64::from(u32::MAX), 1 << 53, i64::MAX as u64, u64::MAX] {
        let asks = CallDescriptor { hits: Some(hits), ..descriptor(b"ann") };
        let told = asked(&mut client, &question(vec![asks])).await;
        assert!(told.refused, "{hits}");
        let retry_after = told.headers.iter().find(|(name, _)| name == "Retry-After");
        assert_eq!(retry_after, None, "waiting does not help");
    }
    let mut of_request = question(vec![descriptor(b"ann")]);
    of_request.hits = u32::MAX;
    assert!(asked(&mut client, &of_request).await.refused);
    assert_eq!(left(&mut client, "ann").await, 5);
    let back = CallDescriptor { hits: Some(u64::MAX), refund: true, ..descriptor(b"ann") };
    assert!(!asked(&mut client, &question(vec![back])).await.refused);
    assert_eq!(left(&mut client, "ann").await, 5, "never more than the limit");
}

#[tokio::test]
async fn the_same_descriptor_many_times_is_charged_each_time_and_ends() {
    let (_serving, address) = target(&[]);
    let mut client = client(address).await;
    assert!(asked(&mut client, &question(vec![descriptor(b"ann"); 64])).await.refused);
    assert_eq!(left(&mut client, "ann").await, 5);
    assert!(!asked(&mut client, &question(vec![descriptor(b"ann"); 5])).await.refused);
    assert_eq!(left(&mut client, "ann").await, 0);
}

#[tokio::test]
async fn values_that_look_alike_have_counters_of_their_own() {
    let (serving, address) = target(&[]);
    let mut client = client(address).await;
    let values: [&[u8]; 16] = [
        b"",
        b"a",
        b"A",
        b"a ",
        b" a",
        b"a_b",
        b"a:b|c",
        b"{a}",
        b"}{",
        b"%61",
        b"a\n{\"level\":\"ERROR\",\"message\":\"forged\"}",
        b"a\r\nset-cookie: x",
        b"a\0",
        b"\xff\xfe",
        "\u{430}".as_bytes(),
        "a\u{202e}\u{1b}[31m".as_bytes(),
    ];
    assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), values.len());
    for value in values {
        let told = asked(&mut client, &question(vec![descriptor(value)])).await;
        assert_eq!(told.statuses[0].remaining, 4, "{value:?}");
    }
    // Two entries are not one entry that spells both.
    for _ in 0..9 {
        let mut two = descriptor(b"a");
        two.entries.push((b"client".to_vec(), b"b".to_vec()));
        asked(&mut client, &question(vec![two])).await;
    }
    assert_eq!(left(&mut client, "a_client_b").await, 5);
    assert!(!serving.log().contains("forged"));
}

#[tokio::test]
async fn limits_of_the_callers_own_are_held_to_what_a_limit_can_be() {
    let (_serving, address) = target(&[]);
    let mut client = client(address).await;
    let of = |requests_per_unit, unit, unit_multiplier| {
        let limit = Some(Override { requests_per_unit, unit, unit_multiplier });
        question(vec![CallDescriptor { limit, ..descriptor(b"ann") }])
    };
    assert!(asked(&mut client, &of(0, Unit::Second, 1)).await.refused);
    let most = asked(&mut client, &of(u32::MAX, Unit::Year, u32::MAX)).await;
    assert!(!most.refused && most.statuses[0].remaining < u32::MAX);
    // Ten years, as the policy language has it.
    assert!(most.statuses[0].reset_seconds.is_some_and(|seconds| seconds <= 3_652 * 86_400));
    assert_eq!(left(&mut client, "ann").await, 5, "counters of their own");
}

#[tokio::test]
async fn a_deadline_that_is_over_consumes_nothing_and_one_that_is_none_is_ignored() {
    let (_serving, address) = target(&[]);
    let connection = connect(address).await;
    let status = async |timeout: &str| {
        let request = call().header("grpc-timeout", timeout);
        exchange(&connection, request, framed(&message(&ann()))).await.unwrap().grpc_status
    };
    for over in ["0n", "0m", "1u", "999n"] {
        assert_eq!(status(over).await, DEADLINE_EXCEEDED, "{over}");
    }
    let mut client = client(address).await;
    assert_eq!(left(&mut client, "ann").await, 5);
    for ignored in ["", "20", "soon", "-1m", "123456789m"] {
        assert_eq!(status(ignored).await, 0, "{ignored}");
    }
    assert_eq!(left(&mut client, "ann").await, 0);
}

#[tokio::test]
async fn a_caller_that_leaves_in_the_middle_leaves_the_others_alone() {
    let (_serving, address) = target(&[]);
    let connection = connect(address).await;
    for _ in 0..200 {
        let mut send = connection.clone().ready().await.unwrap();
        let (response, mut stream) = send.send_request(call().body(()).unwrap(), false).unwrap();
        let half = framed(&message(&entry(b"client", b"leaver")));
        stream.send_data(half.slice(..half.len() / 2), false).unwrap();
        stream.send_reset(h2::Reason::CANCEL);
        drop(response);
    }
    let mut client = client(address).await;
    assert_eq!(left(&mut client, "leaver").await, 5, "half a request charges nobody");
    assert_eq!(left(&mut client, "ann").await, 5);
}

#[tokio::test]
async fn a_path_without_entries_and_an_unknown_domain_meet_no_limit() {
    let (_serving, address) = target(&[]);
    let mut client = client(address).await;
    let bare = CallDescriptor::default();
    let told = asked(&mut client, &question(vec![bare, descriptor(b"ann")])).await;
    assert!(told.statuses[0].limit.is_none() && told.statuses[1].limit.is_some());
    let mut elsewhere = question(vec![descriptor(b"ann")]);
    elsewhere.domain = "nowhere".to_owned();
    for _ in 0..9 {
        let told = asked(&mut client, &elsewhere).await;
        assert!(!told.refused && told.statuses[0].limit.is_none());
    }
    assert_eq!(left(&mut client, "ann").await, 4);
}
