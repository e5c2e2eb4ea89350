//! Graceful shutdown: health fails first, then no new connections, then GOAWAY; calls finish, and
//! nobody keeps the server past the hard limit.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::incomplete_requests::begin;
use super::test_server::{PATIENCE, Server, encoded, soon, until};
use crate::support::raw_http2::{
    PREFACE, SETTINGS, begun, call, connect, exchange, frame, framed, read_until_closed, socket,
};

#[tokio::test]
async fn during_the_drain_delay_health_says_no_and_everything_else_goes_on() {
    let mut server = Server::with(|limits| limits.drain_delay = PATIENCE / 2);
    let connection = connect(server.address).await;
    exchange(&connection, call(), framed(&encoded("edge"))).await.unwrap();
    server.leave();
    until("health says no", || !server.health.is_serving()).await;
    let answer = exchange(&connection, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    let late = connect(server.address).await;
    let answer = exchange(&late, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
}

#[tokio::test]
async fn a_call_under_way_finishes_and_an_idle_connection_is_told_to_go() {
    let mut server = Server::start();
    let busy = connect(server.address).await;
    let mut idle = begun(server.address).await;
    let waiting = tokio::spawn(async move {
        exchange(&busy, call(), framed(&encoded("wait"))).await.map(|answer| answer.grpc_status)
    });
    until("the call is judged", || server.judged() == 1).await;
    until("both are there", || server.open() == 2).await;
    server.leave();
    let (address, gate) = (server.address, std::sync::Arc::clone(&server.bench));
    // A bare socket acknowledges no ping, so that only the first, warning GOAWAY is certain.
    loop {
        let (kind, _) = crate::support::raw_http2::next_frame(&mut idle).await.expect("a GOAWAY");
        if kind == crate::support::raw_http2::GOAWAY {
            break;
        }
    }
    drop(idle);
    assert!(TcpStream::connect(address).await.is_err(), "no connection is accepted any more");
    gate.gate.add_permits(1);
    assert_eq!(soon("the call", waiting).await.unwrap().unwrap(), 0);
    assert_eq!(server.left().await, 0);
}

#[tokio::test]
async fn an_open_stream_of_reflection_keeps_nobody() {
    let mut server = Server::start();
    let connection = connect(server.address).await;
    let reflection = "http://tidegate/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let (response, _stream) = begin(&connection, call().uri(reflection), &[]).await;
    assert_eq!(soon("the head", response).await.unwrap().status(), 200);
    server.leave();
    assert_eq!(server.left().await, 0);
}

#[tokio::test]
async fn a_silent_connection_keeps_nobody() {
    let server = Server::start();
    let _silent = socket(server.address).await;
    let mut half = socket(server.address).await;
    half.write_all(&PREFACE[..10]).await.unwrap();
    until("both are there", || server.open() == 2).await;
    assert_eq!(server.left().await, 0);
}

#[tokio::test]
async fn a_frozen_caller_is_cut_off_at_the_hard_limit() {
    let server = Server::with(|limits| limits.hard_limit = Duration::from_millis(200));
    // It shakes hands, begins a call and is never heard of again.
    let mut frozen = socket(server.address).await;
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    frozen.write_all(&hello).await.unwrap();
    let connection = connect(server.address).await;
    let waiting = tokio::spawn(async move {
        exchange(&connection, call(), framed(&encoded("wait")))
            .await
            .map(|answer| answer.grpc_status)
    });
    until("the call is judged", || server.judged() == 1).await;
    until("both are there", || server.open() == 2).await;
    assert_eq!(server.left().await, 2);
    assert!(soon("the call", waiting).await.unwrap().is_err());
    read_until_closed(&mut frozen).await;
}
