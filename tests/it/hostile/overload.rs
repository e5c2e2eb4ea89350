//! Overload: calls whose callers gave up during a stall are dropped, and the others are answered. While
//! callers keep giving up, calls are refused before they are decoded.

use std::net::SocketAddr;
use std::process::Command;

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::target::{soon, target};
use crate::support::raw_http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, METHOD, RST_STREAM, WINDOW_UPDATE, begun,
    frame, framed, header_block, headers_for, next_stream_frame,
};
use crate::support::tidegate_process::{Tidegate, metric};

/// Calls of a worker that may wait without counting as a queue.
const SHORT_QUEUE: u64 = 32;
/// Calls on a connection that are in flight when their caller resets all of them.
const RESET_TOGETHER: usize = 200;

/// A connection that sends calls in few bytes: while the server is stopped, the kernel holds them.
struct Connection {
    socket: TcpStream,
    next_stream: u32,
}

impl Connection {
    async fn open(address: SocketAddr) -> Connection {
        let mut socket = begun(address).await;
        // Room for all answers.
        let window = frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes());
        socket.write_all(&window).await.unwrap();
        Connection { socket, next_stream: 1 }
    }

    /// Appends a call with a deadline that no stall exceeds. Returns its stream.
    fn push_call(&mut self, out: &mut Vec<u8>) -> u32 {
        let headers = [
            (":path", METHOD),
            (":authority", "a"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "1H"),
        ];
        // POST and http, and literals that are indexed for the calls that follow.
        let mut block = vec![0x83, 0x86];
        for (position, (name, value)) in headers.into_iter().enumerate() {
            if self.next_stream > 1 {
                block.push(0x80 | (65 - position as u8));
            } else {
                block.extend(field(0x40, name, value));
            }
        }
        self.push_call_with(out, &block, &message())
    }

    /// Appends a call with this header block and body. Returns its stream.
    fn push_call_with(&mut self, out: &mut Vec<u8>, block: &[u8], body: &[u8]) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        out.extend(frame(HEADERS, END_HEADERS, stream, block));
        out.extend(frame(DATA, END_STREAM, stream, body));
        stream
    }

    /// Sends calls and resets them, and then calls that wait for their answer. Returns the streams of
    /// these.
    async fn send(&mut self, given_up: usize, live: usize) -> Vec<u32> {
        let (mut bytes, mut open) = (Vec::new(), Vec::new());
        for number in 1..=given_up {
            open.push(self.push_call(&mut bytes));
            if open.len() == RESET_TOGETHER || number == given_up {
                for stream in open.drain(..) {
                    bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
                }
            }
        }
        let live = (0..live).map(|_| self.push_call(&mut bytes)).collect();
        self.socket.write_all(&bytes).await.unwrap();
        live
    }
}

/// A field of HPACK with a new name.
fn field(kind: u8, name: &str, value: &str) -> Vec<u8> {
    let name = [&[kind, name.len() as u8][..], name.as_bytes()].concat();
    [&name, &[value.len() as u8][..], value.as_bytes()].concat()
}

/// A gRPC message that asks for a limit.
fn message() -> Bytes {
    padded_message(0)
}

/// The same with a field of this many bytes that the service does not know.
fn padded_message(padding: u16) -> Bytes {
    let entry = [&[0x0a, 6][..], b"client", &[0x12, 3], b"bob"].concat();
    let descriptor = [&[0x0a, entry.len() as u8][..], &entry].concat();
    let request = [&[0x0a, 4][..], b"edge", &[0x12, descriptor.len() as u8], &descriptor].concat();
    let length = [0x80 | padding as u8, 0x80 | (padding >> 7) as u8, (padding >> 14) as u8];
    framed(&[&request, &[0x7a][..], &length, &vec![0; padding.into()]].concat())
}

fn signal(serving: &Tidegate, name: &str) {
    let status = Command::new("kill").args([name, &serving.id().to_string()]).status();
    assert!(status.unwrap().success());
}

fn decided(serving: &Tidegate) -> u64 {
    metric(serving, "decisions_total")
}

/// Stops the process, sends calls of callers that give up and of callers that wait, and lets it go
/// on. Returns the number of calls that were decided although their callers had given up.
async fn decided_in_vain(connections: usize, given_up: usize, live: usize) -> u64 {
    let (serving, address) = target(&["--threads", "1"]);
    let mut all = Vec::new();
    for _ in 0..connections {
        let mut connection = Connection::open(address).await;
        let first = connection.send(0, 1).await;
        assert_eq!(connection.exchange(&[], &first).await.answered, 1);
        all.push((connection, Vec::new()));
    }
    let before = decided(&serving);
    signal(&serving, "-STOP");
    for (connection, waiting) in &mut all {
        *waiting = connection.send(given_up, live).await;
    }
    signal(&serving, "-CONT");
    // A process that takes long to read all of the resets refuses calls. It answers those that follow.
    let mut answered = 0;
    for (connection, waiting) in &mut all {
        answered += connection.exchange(&[], waiting).await.answered as u64;
        soon("an answer", async {
            let before = answered;
            while answered == before {
                let again = connection.send(0, 1).await;
                answered += connection.exchange(&[], &again).await.answered as u64;
            }
        })
        .await;
    }
    let in_vain = decided(&serving) - before - answered;
    println!("{in_vain} of {} calls decided in vain", connections * given_up);
    in_vain
}

#[tokio::test]
async fn calls_that_were_reset_during_a_stall_are_not_decided() {
    let in_vain = decided_in_vain(8, RESET_TOGETHER, 100).await;
    assert!(in_vain <= 8 * SHORT_QUEUE, "{in_vain} of 1600");
}

#[tokio::test]
async fn a_connection_stays_open_after_a_stall_in_which_thousands_of_calls_were_reset() {
    let in_vain = decided_in_vain(1, 2_000, 100).await;
    // The last resets may arrive after the calls were looked at.
    assert!(in_vain <= SHORT_QUEUE + RESET_TOGETHER as u64, "{in_vain} of 2000");
}

/// Outcome of calls whose callers wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    answered: usize,
    refused: usize,
    /// Bytes by which the window of the connection grew.
    window: usize,
}

impl Connection {
    /// Sends bytes, and reads until each of these calls has an answer or was refused.
    async fn exchange(&mut self, bytes: &[u8], calls: &[u32]) -> Outcome {
        let (mut reading, mut writing) = self.socket.split();
        let mut waiting: Vec<u32> = calls.to_vec();
        let mut outcome = Outcome::default();
        let read = async {
            while !waiting.is_empty() {
                let frame = next_stream_frame(&mut reading).await;
                let (kind, stream, payload) = frame.expect("an open connection");
                assert_ne!(kind, GOAWAY, "{payload:?}");
                if kind == WINDOW_UPDATE && stream == 0 {
                    outcome.window += u32::from_be_bytes(payload.try_into().unwrap()) as usize;
                    continue;
                }
                let Some(at) = waiting.iter().position(|waiting| *waiting == stream) else {
                    continue;
                };
                match kind {
                    DATA => outcome.answered += 1,
                    RST_STREAM => {
                        assert_eq!(payload, 7_u32.to_be_bytes(), "REFUSED_STREAM");
                        outcome.refused += 1;
                    }
                    _ => continue,
                }
                waiting.swap_remove(at);
            }
        };
        let (_, written) = tokio::join!(read, writing.write_all(bytes));
        written.unwrap();
        outcome
    }

    /// Makes 20 calls that their callers reset, and then 40 whose callers wait. Each is made by `push`.
    async fn give_up(&mut self, push: impl Fn(&mut Self, &mut Vec<u8>) -> u32) -> Outcome {
        let mut bytes = Vec::new();
        let reset: Vec<u32> = (0..20).map(|_| push(self, &mut bytes)).collect();
        for stream in reset {
            bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        let waiting: Vec<u32> = (0..40).map(|_| push(self, &mut bytes)).collect();
        self.exchange(&bytes, &waiting).await
    }

    /// Makes calls that their callers reset until calls are refused.
    async fn overload(&mut self) {
        soon("calls are refused", async {
            while self.give_up(Self::push_call).await.refused == 0 {}
        })
        .await;
    }
}

/// A process with one worker, and a connection on which one call was answered.
async fn served() -> (Tidegate, SocketAddr, Connection) {
    let (serving, address) = target(&["--threads", "1"]);
    let mut connection = Connection::open(address).await;
    let first = connection.send(0, 1).await;
    assert_eq!(connection.exchange(&[], &first).await.answered, 1);
    (serving, address, connection)
}

#[tokio::test]
async fn while_callers_give_up_calls_are_refused_and_counted() {
    let (serving, _, mut connection) = served().await;
    let mut all = Outcome::default();
    let literal = header_block();
    soon("both kinds of header blocks are refused", async {
        let (mut indexed_refused, mut literal_refused) = (0, 0);
        while indexed_refused < 100 || literal_refused < 100 {
            let indexed = connection.give_up(Connection::push_call).await;
            let plain = connection
                .give_up(|connection, out| connection.push_call_with(out, &literal, &message()))
                .await;
            indexed_refused += indexed.refused;
            literal_refused += plain.refused;
            all.answered += indexed.answered + plain.answered;
            all.refused += indexed.refused + plain.refused;
        }
    })
    .await;
    assert!(all.answered > 0, "{all:?}");
    // Some were reset by their callers after they had been refused.
    assert!(metric(&serving, "overload_rejections_total") >= all.refused as u64, "{all:?}");
    assert_eq!(metric(&serving, "connections_broken_total"), 0);
}

#[tokio::test]
async fn header_blocks_that_later_ones_need_pass_and_are_decoded() {
    let (_serving, _, mut connection) = served().await;
    connection.overload().await;
    let mut refused = 0;
    soon("enough calls are refused", async {
        while refused < 1_000 {
            // A path that enters the dynamic table, and that the next call takes from it.
            let mut bytes = Vec::new();
            let mut block = vec![0x83, 0x86, 0x44, METHOD.len() as u8];
            block.extend(METHOD.bytes());
            block.extend(field(0x40, "content-type", "application/grpc"));
            let first = connection.push_call_with(&mut bytes, &block, &message());
            let block = [0x83, 0x86, 0x80 | 63, 0x80 | 62];
            let calls: Vec<u32> = std::iter::once(first)
                .chain((0..60).map(|_| connection.push_call_with(&mut bytes, &block, &message())))
                .collect();
            for stream in &calls[1..40] {
                bytes.extend(frame(RST_STREAM, 0, *stream, &8_u32.to_be_bytes()));
            }
            let waiting = [&calls[..1], &calls[40..]].concat();
            let outcome = connection.exchange(&bytes, &waiting).await;
            assert!(outcome.answered > 0);
            refused += outcome.refused;
        }
    })
    .await;
}

#[tokio::test]
async fn dropped_data_does_not_use_up_the_window_of_the_connection() {
    /// More than the window of the connection.
    const DROPPED_BYTES: usize = 40 << 20;
    let (_serving, _, mut connection) = served().await;
    connection.overload().await;
    // Many calls in one read, because each read passes some: a fast process refuses no others.
    let body = padded_message(1024);
    let (mut refused, mut sent, mut granted) = (0, 0, 32 << 20);
    soon("enough data is dropped", async {
        while refused * body.len() < DROPPED_BYTES {
            let calls = |connection: &mut Connection, out: &mut Vec<u8>| {
                connection.push_call_with(out, &header_block(), &body)
            };
            let outcome = connection.give_up(calls).await;
            refused += outcome.refused;
            sent += 60 * body.len();
            granted += outcome.window;
            assert!(sent <= granted, "{sent} bytes sent, {granted} granted");
        }
    })
    .await;
}

#[tokio::test]
async fn health_checks_are_answered_and_a_connection_with_them_is_not_filtered() {
    let (serving, address, mut connection) = served().await;
    let check = headers_for("/grpc.health.v1.Health/Check");
    let mut with_checks = Connection::open(address).await;
    let mut healthy = async || {
        let mut bytes = Vec::new();
        let call = with_checks.push_call_with(&mut bytes, &check, &framed(&[]));
        with_checks.exchange(&bytes, &[call]).await.answered
    };
    assert_eq!(healthy().await, 1);
    let (mut refused, mut others, mut other) =
        (0, Outcome::default(), Connection::open(address).await);
    let mut bytes = Vec::new();
    let call = other.push_call_with(&mut bytes, &check, &framed(&[]));
    assert_eq!(other.exchange(&bytes, &[call]).await.answered, 1);
    soon("enough calls are refused", async {
        while refused < 200 {
            refused += connection.give_up(Connection::push_call).await.refused;
            let literal = header_block();
            let outcome =
                other.give_up(|other, out| other.push_call_with(out, &literal, &message())).await;
            others.answered += outcome.answered;
            others.refused += outcome.refused;
            assert_eq!(healthy().await, 1);
        }
    })
    .await;
    assert_eq!(others.refused, 0, "{others:?}");
    assert_eq!(metric(&serving, "connections_broken_total"), 0);
}

#[tokio::test]
async fn after_the_overload_every_call_is_answered() {
    let (serving, _, mut connection) = served().await;
    connection.overload().await;
    let mut calm = async || {
        let mut bytes = Vec::new();
        let calls: Vec<u32> = (0..200).map(|_| connection.push_call(&mut bytes)).collect();
        connection.exchange(&bytes, &calls).await.refused == 0
    };
    soon("the overload ends", async { while !calm().await {} }).await;
    let refused = metric(&serving, "overload_rejections_total");
    for _ in 0..20 {
        assert!(calm().await);
    }
    assert_eq!(metric(&serving, "overload_rejections_total"), refused);
}
