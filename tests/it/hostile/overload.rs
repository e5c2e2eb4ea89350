//! Overload: calls whose callers gave up during a stall are dropped, and the others are answered.

use std::net::SocketAddr;
use std::process::Command;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::target::target;
use crate::support::http;
use crate::support::raw_http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, METHOD, RST_STREAM, begun, frame, framed,
    next_frame,
};
use crate::support::tidegate_process::Tidegate;

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
        Connection { socket: begun(address).await, next_stream: 1 }
    }

    /// Appends a call with a deadline that no stall exceeds. Returns its stream.
    fn push_call(&mut self, out: &mut Vec<u8>) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        let headers = [
            (":path", METHOD),
            (":authority", "a"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "1H"),
        ];
        // POST and http, and literals that are indexed for the calls that follow.
        let mut block = vec![0x83, 0x86];
        for (position, (name, value)) in headers.into_iter().enumerate() {
            if stream > 1 {
                block.push(0x80 | (65 - position as u8));
            } else {
                block.extend([&[0x40, name.len() as u8][..], name.as_bytes()].concat());
                block.extend([&[value.len() as u8][..], value.as_bytes()].concat());
            }
        }
        let entry = [&[0x0a, 6][..], b"client", &[0x12, 3], b"bob"].concat();
        let descriptor = [&[0x0a, entry.len() as u8][..], &entry].concat();
        let message =
            [&[0x0a, 4][..], b"edge", &[0x12, descriptor.len() as u8], &descriptor].concat();
        out.extend(frame(HEADERS, END_HEADERS, stream, &block));
        out.extend(frame(DATA, END_STREAM, stream, &framed(&message)));
        stream
    }

    /// Sends calls and resets them, and then calls that wait for their answer.
    async fn send(&mut self, given_up: usize, live: usize) {
        let (mut bytes, mut open) = (Vec::new(), Vec::new());
        for number in 1..=given_up {
            open.push(self.push_call(&mut bytes));
            if open.len() == RESET_TOGETHER || number == given_up {
                for stream in open.drain(..) {
                    bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
                }
            }
        }
        for _ in 0..live {
            self.push_call(&mut bytes);
        }
        self.socket.write_all(&bytes).await.unwrap();
    }

    /// Waits for this many answers with a decision.
    async fn wait_for_answers(&mut self, count: usize) {
        let mut answers = 0;
        while answers < count {
            let (kind, _) = next_frame(&mut self.socket).await.expect("an open connection");
            assert_ne!(kind, GOAWAY, "after {answers} answers");
            answers += usize::from(kind == DATA);
        }
    }
}

fn signal(serving: &Tidegate, name: &str) {
    let status = Command::new("kill").args([name, &serving.id().to_string()]).status();
    assert!(status.unwrap().success());
}

fn decided(serving: &Tidegate) -> u64 {
    let metrics = http::get(serving.port("http"), "/metrics").body;
    let is_decision = |line: &&str| line.starts_with("tidegate_decisions_total{");
    let values = metrics.lines().filter(is_decision).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<u64>().expect("a number")).sum()
}

/// Stops the process, sends calls of callers that give up and of callers that wait, and lets it go
/// on. Returns the number of calls that were decided although their callers had given up.
async fn decided_in_vain(connections: usize, given_up: usize, live: usize) -> u64 {
    let (serving, address) = target(&["--threads", "1"]);
    let mut all = Vec::new();
    for _ in 0..connections {
        let mut connection = Connection::open(address).await;
        connection.send(0, 1).await;
        connection.wait_for_answers(1).await;
        all.push(connection);
    }
    let before = decided(&serving);
    signal(&serving, "-STOP");
    for connection in &mut all {
        connection.send(given_up, live).await;
    }
    signal(&serving, "-CONT");
    for connection in &mut all {
        connection.wait_for_answers(live).await;
    }
    let in_vain = decided(&serving) - before - (connections * live) as u64;
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
