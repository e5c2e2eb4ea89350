//! Malformed calls and random bytes: no panic, the documented status, and other connections go on.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;

use super::test_server::{Server, encoded, soon, until};
use crate::support::random::Random;
use crate::support::raw_http2::{
    CONTINUATION, END_HEADERS, HEADERS, PREFACE, RST_STREAM, SETTINGS, call, connect, exchange,
    frame, framed, header_block, read_until_closed, socket,
};

fn rounds() -> u64 {
    crate::support::proof::times(20_000, 1_000_000)
}

/// A message: random bytes, or a good one with a few bytes changed.
fn message(random: &mut Random) -> Vec<u8> {
    if random.next().is_multiple_of(2) {
        return random.bytes(80);
    }
    let mut message = encoded(if random.next().is_multiple_of(2) { "edge" } else { "refuse" });
    for _ in 0..random.next() % 4 {
        let at = random.next() as usize % message.len();
        message[at] = random.next() as u8;
    }
    message
}

#[tokio::test]
async fn random_bytes_as_messages_are_answered_or_invalid_and_nothing_else() {
    const SEED: u64 = 0x7469_6465_6761_7465;
    println!("seed {SEED:#x}");
    let server = Server::start();
    let mut random = Random::seeded(SEED);
    let connection = connect(server.address).await;
    let bystander = connect(server.address).await;
    let mut left = rounds();
    while left > 0 {
        let batch = left.min(500);
        left -= batch;
        let calls = (0..batch).map(|_| {
            let connection = connection.clone();
            let body = framed(&message(&mut random));
            tokio::spawn(async move { exchange(&connection, call(), body).await })
        });
        let calls: Vec<_> = calls.collect();
        for call in calls {
            let answer = call.await.unwrap().unwrap();
            assert!(matches!(answer.grpc_status, 0 | 3), "{answer:?}");
        }
        let answer = exchange(&bystander, call(), framed(&encoded("edge"))).await.unwrap();
        assert_eq!(answer.grpc_status, 0);
    }
    server.left().await;
}

#[tokio::test]
async fn random_bytes_as_bodies_are_answered_with_a_status() {
    let server = Server::start();
    let mut random = Random::seeded(1);
    let connection = connect(server.address).await;
    for _ in 0..500 {
        let body = Bytes::from(random.bytes(40));
        let answer = exchange(&connection, call(), body).await.unwrap();
        assert!(matches!(answer.grpc_status, 3 | 12), "{answer:?}");
    }
    server.left().await;
}

#[tokio::test]
async fn malformed_frames_close_their_connection_and_no_other() {
    let server = Server::start();
    let bystander = connect(server.address).await;
    let mut random = Random::seeded(2);
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for _ in 0..200 {
        let mut socket = socket(server.address).await;
        socket.write_all(&hello).await.unwrap();
        let kind = random.next() as u8 % 12;
        let flags = random.next() as u8;
        let stream = (random.next() % 4) as u32;
        let nonsense = frame(kind, flags, stream, &random.bytes(40));
        let _ = socket.write_all(&nonsense).await;
        let _ = socket.write_all(&random.bytes(400)).await;
        let _ = socket.shutdown().await;
        read_until_closed(&mut socket).await;
        let answer = exchange(&bystander, call(), framed(&encoded("edge"))).await.unwrap();
        assert_eq!(answer.grpc_status, 0);
    }
    until("only the bystander is left", || server.open() == 1).await;
    server.left().await;
}

/// A connection's beginning and `calls` calls, each reset as soon as it was opened.
fn resets(calls: u32) -> Vec<u8> {
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let block = header_block();
    for stream in (0..calls).map(|call| 2 * call + 1) {
        bytes.extend(frame(HEADERS, END_HEADERS, stream, &block));
        bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    bytes
}

/// The server's only thread is held until all resets wait in the socket: a server that looks at
/// calls as fast as they are reset has nothing to object to.
#[tokio::test]
async fn rapid_resets_close_their_connection_and_no_other() {
    let server = Server::with(|limits| limits.pending_resets_max = 50);
    let bystander = connect(server.address).await;
    let other = bystander.clone();
    let held =
        tokio::spawn(async move { exchange(&other, call(), framed(&encoded("stall"))).await });
    until("the thread is held", || server.judged() == 1).await;
    let mut socket = socket(server.address).await;
    soon("the flood", socket.write_all(&resets(100))).await.unwrap();
    server.bench.stalled.store(false, Ordering::SeqCst);
    assert_eq!(held.await.unwrap().unwrap().grpc_status, 0);
    read_until_closed(&mut socket).await;
    until("it is counted", || server.traffic.connections_broken.load(Ordering::SeqCst) == 1).await;
    let answer = exchange(&bystander, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    server.left().await;
}

/// Whether the connection is closed depends on who is faster; that nothing is left does not.
#[tokio::test]
async fn a_flood_of_resets_leaves_nothing_behind() {
    let server = Server::start();
    let bystander = connect(server.address).await;
    let mut socket = socket(server.address).await;
    let _ = soon("the flood", socket.write_all(&resets(30_000))).await;
    let _ = socket.shutdown().await;
    read_until_closed(&mut socket).await;
    until("only the bystander is left", || server.open() == 1).await;
    let answer = exchange(&bystander, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    server.left().await;
}

#[tokio::test]
async fn a_flood_of_continuations_closes_its_connection_and_no_other() {
    let server = Server::start();
    let bystander = connect(server.address).await;
    let mut socket = socket(server.address).await;
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    bytes.extend(frame(HEADERS, 0, 1, &header_block()));
    let filler = [&[0, 1][..], b"x", &[100], &[b'y'; 100]].concat().repeat(100);
    for _ in 0..200 {
        bytes.extend(frame(CONTINUATION, 0, 1, &filler));
    }
    let _ = soon("the flood", socket.write_all(&bytes)).await;
    read_until_closed(&mut socket).await;
    let answer = exchange(&bystander, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    server.left().await;
}

#[tokio::test]
async fn resets_of_an_impatient_caller_disturb_nothing() {
    let server = Server::start();
    let connection = connect(server.address).await;
    for _ in 0..20 {
        let mut dropped = Vec::new();
        for _ in 0..50 {
            let mut send = connection.clone().ready().await.unwrap();
            let (response, mut stream) =
                send.send_request(call().body(()).unwrap(), false).unwrap();
            stream.send_data(framed(&encoded("wait")), true).unwrap();
            dropped.push((response, stream));
        }
        for (_, stream) in &mut dropped {
            stream.send_reset(h2::Reason::CANCEL);
        }
        let answer = exchange(&connection, call(), framed(&encoded("edge"))).await.unwrap();
        assert_eq!(answer.grpc_status, 0);
    }
    server.left().await;
}
