//! HTTP/2 abuse: the abuser loses its connection, and another caller's calls go on.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::target::{soon, target};
use crate::support::raw_http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, PRIORITY, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, begun, call, connect, exchange, frame, framed, header_block,
    open_files, read_until_closed, socket,
};
use crate::support::tidegate_process::{Tidegate, metric};
use crate::support::wait::until;

/// A caller beside the attack.
struct Bystander(SendRequest<Bytes>);

impl Bystander {
    async fn beside(address: SocketAddr) -> Bystander {
        Bystander(connect(address).await)
    }

    async fn is_answered(&self) {
        let entry = [&[0x0a, 6][..], b"client", &[0x12, 3], b"bob"].concat();
        let descriptor = [&[0x0a, entry.len() as u8][..], &entry, &[0x1a, 0]].concat();
        let message =
            [&[0x0a, 4][..], b"edge", &[0x12, descriptor.len() as u8], &descriptor].concat();
        let answer = exchange(&self.0, call(), framed(&message)).await.unwrap();
        assert_eq!(answer.grpc_status, 0, "{answer:?}");
    }
}

fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

fn until_connections(serving: &Tidegate, number: u64) {
    tokio::task::block_in_place(|| {
        until(&format!("{number} connections"), || {
            (metric(serving, "connections") == number).then_some(())
        });
    });
}

/// Sends `flood` after a hello, as far as the server takes it, and waits until the server closes.
async fn closed_by(address: SocketAddr, flood: &[u8]) {
    let mut socket = begun(address).await;
    let (mut reading, mut writing) = socket.split();
    let write = async {
        let _ = writing.write_all(flood).await;
    };
    // What it answers has to be read, or it would wait for us as we wait for it.
    let read = async {
        let mut buffer = vec![0; 65_536];
        while matches!(reading.read(&mut buffer).await, Ok(1..)) {}
    };
    soon("the connection is closed", async { tokio::join!(write, read) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_resets_leave_nothing_behind_and_disturb_nobody() {
    let (serving, address) = target(&[]);
    let bystander = Bystander::beside(address).await;
    let block = header_block();
    let mut flood = hello();
    for stream in (0..crate::support::proof::times(20_000, 300_000) as u32).map(|n| 2 * n + 1) {
        flood.extend(frame(HEADERS, END_HEADERS, stream, &block));
        flood.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    let mut attacker = socket(address).await;
    let (mut reading, mut writing) = attacker.split();
    let attack = async {
        let _ = writing.write_all(&flood).await;
        let _ = writing.shutdown().await;
        let _ = reading.read_to_end(&mut Vec::new()).await;
    };
    // Whether it is closed or keeps pace depends on who is faster; that others are served does not.
    let others = async {
        for _ in 0..20 {
            bystander.is_answered().await;
        }
    };
    soon("the flood is over", async { tokio::join!(attack, others) }).await;
    until_connections(&serving, 1);
    bystander.is_answered().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_the_server_has_to_reset_end_their_connection() {
    let (serving, address) = target(&[]);
    let bystander = Bystander::beside(address).await;
    let block = header_block();
    // Data that is longer than what the headers said is the caller's fault, each time anew.
    let mut length = block.clone();
    length.extend([&[0, 14][..], b"content-length", &[1], b"1"].concat());
    let mut flood = Vec::new();
    for stream in (0..5_000_u32).map(|n| 2 * n + 1) {
        flood.extend(frame(HEADERS, END_HEADERS, stream, &length));
        flood.extend(frame(DATA, 0, stream, b"too long"));
    }
    closed_by(address, &flood).await;
    bystander.is_answered().await;
    assert!(metric(&serving, "connections_broken_total") >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_continuations_ends_its_connection() {
    let (_serving, address) = target(&[]);
    let bystander = Bystander::beside(address).await;
    let filler = [&[0, 1][..], b"x", &[100], &[b'y'; 100]].concat().repeat(100);
    let mut flood = frame(HEADERS, 0, 1, &header_block());
    for _ in 0..1_000 {
        flood.extend(frame(CONTINUATION, 0, 1, &filler));
    }
    closed_by(address, &flood).await;
    // Empty ones never make the list too long: their number is bounded too.
    let mut empty = frame(HEADERS, 0, 1, &header_block());
    for _ in 0..100_000 {
        empty.extend(frame(CONTINUATION, 0, 1, &[]));
    }
    closed_by(address, &empty).await;
    bystander.is_answered().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_empty_data_frames_ends_its_connection() {
    let (_serving, address) = target(&[]);
    let bystander = Bystander::beside(address).await;
    let mut flood = frame(HEADERS, END_HEADERS, 1, &header_block());
    for _ in 0..100_000 {
        flood.extend(frame(DATA, 0, 1, &[]));
    }
    closed_by(address, &flood).await;
    bystander.is_answered().await;
}

/// Frames that the protocol allows in any number: whoever sends them pays as much as we do, and
/// nobody else notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_small_legal_frames_disturb_nobody() {
    let (serving, address) = target(&[]);
    let bystander = Bystander::beside(address).await;
    let many = crate::support::proof::times(5_000, 100_000) as usize;
    let kinds = [
        frame(SETTINGS, 0, 0, &[]),
        frame(PING, 0, 0, &[7; 8]),
        frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(0xee, 0xff, 0, b"a kind that nobody knows"),
    ];
    for kind in kinds {
        let mut attacker = begun(address).await;
        let (mut reading, mut writing) = attacker.split();
        let flood = kind.repeat(many);
        let attack = async {
            let _ = writing.write_all(&flood).await;
            let _ = writing.shutdown().await;
            let _ = reading.read_to_end(&mut Vec::new()).await;
        };
        soon("the flood is over", async { tokio::join!(attack, bystander.is_answered()) }).await;
    }
    until_connections(&serving, 1);
}

/// Window updates that exceed what a window can be, frames of a wrong size, on wrong streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_break_the_protocol_end_their_connection() {
    let (_serving, address) = target(&[]);
    let bystander = Bystander::beside(address).await;
    let broken = [
        frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()).repeat(2),
        frame(SETTINGS, 0, 0, &[0; 5]),
        frame(SETTINGS, 0, 1, &[]),
        frame(PING, 0, 0, &[0; 7]),
        frame(DATA, 0, 0, b"x"),
        frame(DATA, 0, 7, b"x"),
        frame(HEADERS, END_HEADERS, 2, &header_block()),
        frame(HEADERS, END_HEADERS, 1, &[0xff; 64]),
        frame(CONTINUATION, END_HEADERS, 1, &header_block()),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &header_block()).repeat(2),
        vec![0xff; 64],
    ];
    for bytes in broken {
        closed_by(address, &bytes).await;
        bystander.is_answered().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preface_that_comes_byte_by_byte_is_not_waited_for() {
    let (serving, address) = target(&[]);
    let bystander = Bystander::beside(address).await;
    let mut silent = socket(address).await;
    let mut slow = socket(address).await;
    for byte in PREFACE {
        if slow.write_all(&[*byte]).await.is_err() {
            break;
        }
        // Twice as long as the preface's timeout of 5 s, for all of it.
        tokio::time::sleep(Duration::from_millis(10_000 / PREFACE.len() as u64)).await;
    }
    read_until_closed(&mut slow).await;
    read_until_closed(&mut silent).await;
    bystander.is_answered().await;
    until_connections(&serving, 1);
}

/// Waits until the server has closed a connection.
async fn closed(mut connection: SendRequest<Bytes>) {
    while let Ok(ready) = connection.ready().await {
        connection = ready;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// As many as the service lets in, each through its handshake and then silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_disturb_nobody_and_make_room_for_newcomers() {
    let connections = crate::support::proof::times(1_000, 10_000) as usize;
    open_files(connections + 1_000);
    let (serving, address) = target(&["--connections", &connections.to_string()]);
    let bystander = Bystander::beside(address).await;
    let mut idle = Vec::with_capacity(connections);
    for number in 1..connections {
        // They answer keepalive pings, or the server would close them.
        idle.push(connect(address).await);
        // A core keeps 1,024 that it has not looked at, and refuses more.
        if number.is_multiple_of(500) {
            until_connections(&serving, number as u64 + 1);
            bystander.is_answered().await;
        }
    }
    until_connections(&serving, connections as u64);
    for _ in 0..100 {
        bystander.is_answered().await;
    }
    // Newcomers are served, and the connections that are idle longest make room.
    let mut newcomers = Vec::new();
    for first in idle.iter().take(3) {
        let newcomer = Bystander::beside(address).await;
        newcomer.is_answered().await;
        soon("the connection is closed", closed(first.clone())).await;
        // One that leaves would make room for the next.
        newcomers.push(newcomer);
    }
    assert_eq!(metric(&serving, "connections_evicted_total"), 3);
    assert_eq!(metric(&serving, "connections_rejected_total"), 0);
    bystander.is_answered().await;
    drop((idle, newcomers));
    until_connections(&serving, 1);
}
