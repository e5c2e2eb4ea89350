//! Requests that have not arrived completely: bounded in bytes and in time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::Response;
use tidegate::clock::Clock;
use tonic::Code;

use super::test_server::{PATIENCE, Server, encoded, soon};
use crate::support::raw_http2::{call, connect, exchange, framed};

/// A call that has sent `part` of its body and not ended its stream.
pub(super) async fn begin(
    connection: &SendRequest<Bytes>,
    call: http::request::Builder,
    part: &[u8],
) -> (ResponseFuture, SendStream<Bytes>) {
    let mut connection = connection.clone().ready().await.unwrap();
    let (response, mut stream) = connection.send_request(call.body(()).unwrap(), false).unwrap();
    stream.send_data(Bytes::copy_from_slice(part), false).unwrap();
    (response, stream)
}

async fn status(response: ResponseFuture) -> Code {
    let response: Response<RecvStream> = soon("a response", response).await.unwrap();
    let status = response.headers().get("grpc-status").expect("a response without a message");
    Code::from_bytes(status.as_bytes())
}

#[tokio::test]
async fn a_request_has_to_arrive_within_the_callers_deadline_else_within_the_servers() {
    let whole = framed(&encoded("edge"));
    // Of each pair of times, the other one is longer than any wait of a test.
    for (timeout, receive_timeout, least) in [
        (Some("50m"), PATIENCE * 2, 50),
        (None, Duration::from_millis(300), 300),
        (Some("99999999H"), Duration::from_millis(300), 300),
    ] {
        let server = Server::with(|limits| limits.receive_timeout = receive_timeout);
        let connection = connect(server.address).await;
        let request = match timeout {
            Some(timeout) => call().header("grpc-timeout", timeout),
            None => call(),
        };
        let start = Clock::System.monotonic_now();
        let (response, _stream) = begin(&connection, request, &whole[..whole.len() - 1]).await;
        assert_eq!(status(response).await, Code::DeadlineExceeded, "{timeout:?}");
        let elapsed = start.elapsed().as_millis();
        assert!(elapsed >= least, "{timeout:?}: {elapsed} ms");
        assert_eq!(server.traffic.receive_timeouts.load(Ordering::SeqCst), 1);
        assert_eq!(server.judged(), 0);
        let answer = exchange(&connection, call(), whole.clone()).await.unwrap();
        assert_eq!(answer.grpc_status, 0);
        server.left().await;
    }
}

#[tokio::test]
async fn the_time_that_a_request_takes_to_arrive_counts_towards_its_deadline() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let whole = framed(&encoded("wait"));
    let mut took = Vec::new();
    // From its arrival on, 600 ms would end after 1,000. A starved machine gets a few tries.
    while took.len() < 20 && took.last().is_none_or(|last| *last >= Duration::from_millis(950)) {
        let request = call().header("grpc-timeout", "600m");
        let start = Clock::System.monotonic_now();
        let (response, mut stream) = begin(&connection, request, &whole[..3]).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        stream.send_data(whole.slice(3..), true).unwrap();
        assert_eq!(status(response).await, Code::DeadlineExceeded);
        took.push(start.elapsed());
    }
    assert!(took.iter().any(|took| *took < Duration::from_millis(950)), "{took:?}");
    server.left().await;
}

#[tokio::test]
async fn a_request_in_pieces_is_answered_like_any_other() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let whole = framed(&encoded("edge"));
    for piece in [1, 2, 5, 7] {
        let (response, mut stream) = begin(&connection, call(), &whole[..piece]).await;
        for chunk in whole[piece..].chunks(piece) {
            tokio::time::sleep(Duration::from_millis(2)).await;
            stream.send_data(Bytes::copy_from_slice(chunk), false).unwrap();
        }
        stream.send_data(Bytes::new(), true).unwrap();
        let (head, mut body) = soon("a response", response).await.unwrap().into_parts();
        assert!(head.headers.get("grpc-status").is_none());
        while body.data().await.is_some() {}
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
    }
    assert_eq!(server.judged(), 4);
    server.left().await;
}

#[tokio::test]
async fn the_oldest_incomplete_requests_beyond_the_budget_of_a_connection_are_reset() {
    let server = Server::with(|limits| limits.held_bytes_per_connection_max = 256 * 1024);
    let connection = connect(server.address).await;
    let half = [&[0, 0, 1, 0, 0][..], &[0; 50_000]].concat();
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(begin(&connection, call(), &half).await);
    }
    let mut rejected = 0;
    let mut waiting = Vec::new();
    for (mut response, stream) in calls {
        // The newest two are received further; the others end immediately.
        if rejected == 8 {
            waiting.push((response, stream));
            continue;
        }
        let error = soon("a reset", &mut response).await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL), "{error}");
        rejected += 1;
    }
    assert_eq!(server.traffic.calls_over_budget.load(Ordering::SeqCst), rejected);
    let other = connect(server.address).await;
    let answer = exchange(&other, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    // Streams that the caller resets free what they held.
    for (_, mut stream) in waiting {
        stream.send_reset(h2::Reason::CANCEL);
    }
    let long = framed(&[encoded("edge"), vec![0x1a, 0x80, 0x80, 0x08], vec![0; 131_072]].concat());
    let answer = soon("their room is free again", exchange(&connection, call(), long)).await;
    assert_eq!(answer.unwrap().grpc_status, 3, "it was received");
    server.left().await;
}

#[tokio::test]
async fn calls_in_two_pieces_are_answered_beside_header_only_streams_beyond_the_budget() {
    let server = Server::with(|limits| {
        limits.held_bytes_max = 512 << 10;
        limits.receive_timeout = Duration::from_secs(60);
    });
    let honest = connect(server.address).await;
    let mut flood = Vec::new();
    for _ in 0..8 {
        let attacker = connect(server.address).await;
        for _ in 0..100 {
            let mut send = attacker.clone().ready().await.unwrap();
            flood.push(send.send_request(call().body(()).unwrap(), false).unwrap());
        }
    }
    // 800 streams of 3 KiB; the budget and the floors have room for 1 MiB.
    let lost = || server.traffic.calls_over_budget.load(Ordering::SeqCst);
    crate::grpc::test_server::until("the budget is used up", || lost() > 400).await;
    let whole = framed(&encoded("edge"));
    for _ in 0..200 {
        let (response, mut stream) = begin(&honest, call(), &whole[..9]).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        stream.send_data(whole.slice(9..), true).unwrap();
        let (head, mut body) = soon("a response", response).await.unwrap().into_parts();
        assert!(head.headers.get("grpc-status").is_none());
        while body.data().await.is_some() {}
    }
    assert_eq!(server.judged(), 200);
    drop(flood);
    server.left().await;
}

#[tokio::test]
async fn a_message_that_is_too_long_is_rejected_at_its_prefix() {
    let server = Server::with(|limits| limits.receive_timeout = PATIENCE * 2);
    let connection = connect(server.address).await;
    for (prefix, code) in [
        ([0, 0, 16, 0, 1], Code::InvalidArgument),
        ([0, 255, 255, 255, 255], Code::InvalidArgument),
        ([1, 0, 0, 0, 9], Code::Unimplemented),
    ] {
        let (response, _stream) = begin(&connection, call(), &prefix).await;
        assert_eq!(status(response).await, code, "before any timeout");
    }
    server.left().await;
}

#[tokio::test]
async fn a_health_check_whose_message_does_not_arrive_ends_by_its_deadline() {
    let server = Server::with(|limits| limits.receive_timeout = PATIENCE * 2);
    let connection = connect(server.address).await;
    let check = call().uri("http://tidegate/grpc.health.v1.Health/Check");
    let (response, _stream) = begin(&connection, check.header("grpc-timeout", "50m"), &[]).await;
    assert_eq!(soon("the answer", status(response)).await, Code::DeadlineExceeded);
}

#[tokio::test]
async fn health_and_reflection_neither_allocate_nor_wait_for_a_message_that_does_not_arrive() {
    let server = Server::with(|limits| limits.receive_timeout = Duration::from_millis(100));
    let connection = connect(server.address).await;
    let check = "http://tidegate/grpc.health.v1.Health/Check";
    let (response, _stream) = begin(&connection, call().uri(check), &[0, 0, 0, 0, 9]).await;
    assert_eq!(status(response).await, Code::DeadlineExceeded);
    let (response, _stream) = begin(&connection, call().uri(check), &[0, 0, 0, 16, 1]).await;
    assert_eq!(status(response).await, Code::OutOfRange, "a message of more than 4 KiB");
    server.left().await;
}
