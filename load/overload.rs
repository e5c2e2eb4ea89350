//! Offers a service more calls than it can answer, from callers that reset them after 20 ms, and
//! prints how many were answered in time. Std only, so that `rustc -O load/overload.rs` builds it.
//!
//!     overload ADDRESS RATE SECONDS [CONNECTIONS] [IN_FLIGHT] [STREAMS]
//!         [GRPC_TIMEOUT|none] [PATIENCE_MS]
//!
//! Behaves like Envoy and grpc-go: at most STREAMS calls of a connection are open (the 250 that the
//! service advertises), and the rest wait in the client, oldest first. Calls beyond IN_FLIGHT are
//! not made. The figures leave out the first second.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const WARM_UP: Duration = Duration::from_secs(1);
/// Bytes that may wait in the client for a full socket.
const UNSENT_MAX: usize = 16 * 1024;

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[tag, bytes.len() as u8][..], bytes].concat()
}

fn message(key: u64) -> Vec<u8> {
    let entry = [field(0x0a, b"client"), field(0x12, key.to_string().as_bytes())].concat();
    let descriptor = field(0x0a, &entry);
    let message = [field(0x0a, b"edge"), field(0x12, &descriptor)].concat();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
}

#[derive(Default)]
struct Counts {
    offered: u64,
    /// Not made, because too many calls were in flight.
    over: u64,
    in_time: u64,
    /// Answered with an error.
    rejected: u64,
    /// Reset with REFUSED_STREAM.
    refused: u64,
    failed: u64,
    late: u64,
    /// Gave up before they were sent.
    unsent: u64,
}

struct Connection {
    socket: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    queue: VecDeque<Instant>,
    /// When the caller of each open call gives up, and whether its decision has arrived.
    open: HashMap<u32, (Instant, bool)>,
    order: VecDeque<(u32, Instant)>,
    next: u32,
    timeout: Option<String>,
    closed: bool,
}

impl Connection {
    fn new(address: &str, timeout: Option<String>) -> Connection {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut out, 4, 0, 0, &[]);
        frame(&mut out, 8, 0, 0, &(0x7fff_0000_u32 - 65_535).to_be_bytes());
        Connection {
            socket,
            out,
            input: Vec::new(),
            queue: VecDeque::new(),
            open: HashMap::new(),
            order: VecDeque::new(),
            next: 1,
            timeout,
            closed: false,
        }
    }

    fn headers(&self) -> Vec<u8> {
        if self.next > 1 {
            let mut block = vec![0x83, 0x86];
            let last = if self.timeout.is_some() { 66 } else { 65 };
            block.extend((62..=last).rev().map(|index| 0x80 | index as u8));
            return block;
        }
        // Literals with incremental indexing.
        let mut block = vec![0x83, 0x86];
        block.extend([&[0x44][..], &field_text("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")].concat());
        block.extend([&[0x41][..], &field_text("ratelimit")].concat());
        block.extend([&[0x40][..], &field_text("content-type"), &field_text("application/grpc")].concat());
        block.extend([&[0x40][..], &field_text("te"), &field_text("trailers")].concat());
        if let Some(timeout) = &self.timeout {
            block.extend([&[0x40][..], &field_text("grpc-timeout"), &field_text(timeout)].concat());
        }
        block
    }

    fn send_calls(&mut self, now: Instant, streams: usize, counts: &mut Counts) {
        while self.open.len() < streams && self.out.len() < UNSENT_MAX {
            let Some(due) = self.queue.pop_front() else { return };
            if due <= now {
                counts.unsent += 1;
                continue;
            }
            let stream = self.next;
            let block = self.headers();
            frame(&mut self.out, 1, 4, stream, &block);
            frame(&mut self.out, 0, 1, stream, &message(u64::from(stream) % 2_000));
            self.next += 2;
            self.open.insert(stream, (due, false));
            self.order.push_back((stream, due));
        }
    }

    fn give_up(&mut self, now: Instant, counts: &mut Counts) {
        while self.order.front().is_some_and(|(_, due)| *due <= now) {
            let (stream, _) = self.order.pop_front().unwrap();
            if self.open.remove(&stream).is_some() {
                counts.late += 1;
                frame(&mut self.out, 3, 0, stream, &8_u32.to_be_bytes());
            }
        }
    }

    fn transfer(&mut self, buffer: &mut [u8], counts: &mut Counts) {
        if !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
        }
        match self.socket.read(buffer) {
            Ok(0) => self.closed = true,
            Ok(read) => self.input.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => self.closed = true,
        }
        let now = Instant::now();
        let mut at = 0;
        while let Some(head) = self.input.get(at..at + 9) {
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let Some(payload) = self.input.get(at + 9..at + 9 + length) else { break };
            match kind {
                4 if flags & 1 == 0 => frame(&mut self.out, 4, 1, 0, &[]),
                6 if flags & 1 == 0 => frame(&mut self.out, 6, 1, 0, payload),
                0 => drop(self.open.get_mut(&stream).map(|call| call.1 = true)),
                1 if flags & 1 != 0 => match self.open.remove(&stream) {
                    Some((due, true)) if now <= due => counts.in_time += 1,
                    Some((_, true)) => counts.late += 1,
                    Some((_, false)) => counts.rejected += 1,
                    None => {}
                },
                3 => {
                    let open = u64::from(self.open.remove(&stream).is_some());
                    let count = if payload == [0, 0, 0, 7] { &mut counts.refused } else { &mut counts.failed };
                    *count += open;
                }
                7 => self.closed = true,
                _ => {}
            }
            at += 9 + length;
        }
        self.input.drain(..at);
    }
}

fn field_text(text: &str) -> Vec<u8> {
    [&[text.len() as u8][..], text.as_bytes()].concat()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (rate, seconds) = (number(1, 10_000.0), number(2, 5.0));
    let connections = number(3, 8.0) as usize;
    let in_flight = number(4, 16_000.0) as usize / connections;
    let streams = number(5, 250.0) as usize;
    let timeout = arguments.get(6).filter(|text| *text != "none").cloned();
    let patience = Duration::from_millis(number(7, 20.0) as u64);
    let open = || Connection::new(&arguments[0], timeout.clone());
    let mut all: Vec<Connection> = (0..connections).map(|_| open()).collect();
    let mut buffer = vec![0; 256 * 1024];
    let (mut counts, mut made, mut warm, mut reconnects) = (Counts::default(), 0_u64, false, 0);
    let start = Instant::now();
    while start.elapsed() < WARM_UP + Duration::from_secs_f64(seconds) {
        let now = Instant::now();
        if !warm && now - start > WARM_UP {
            (warm, counts) = (true, Counts::default());
        }
        let due = (rate * start.elapsed().as_secs_f64()) as u64;
        while made < due {
            let connection = &mut all[made as usize % connections];
            made += 1;
            counts.offered += 1;
            match connection.queue.len() + connection.open.len() < in_flight {
                true => connection.queue.push_back(now + patience),
                false => counts.over += 1,
            }
        }
        for connection in &mut all {
            connection.give_up(now, &mut counts);
            while connection.queue.front().is_some_and(|due| *due <= now) {
                connection.queue.pop_front();
                counts.unsent += 1;
            }
            connection.send_calls(now, streams, &mut counts);
            connection.transfer(&mut buffer, &mut counts);
            if connection.closed {
                counts.failed += connection.open.len() as u64;
                *connection = open();
                reconnects += 1;
            }
        }
    }
    let Counts { offered, over, in_time, rejected, refused, failed, late, unsent } = counts;
    println!(
        "offered {:.0}/s in time {:.0}/s rejected {:.0}/s refused {:.0}/s late {:.0}/s failed {:.0}/s unsent {:.0}/s over {:.0}/s reconnects {reconnects}",
        offered as f64 / seconds,
        in_time as f64 / seconds,
        rejected as f64 / seconds,
        refused as f64 / seconds,
        late as f64 / seconds,
        failed as f64 / seconds,
        unsent as f64 / seconds,
        over as f64 / seconds,
    );
}
