//! HTTP/2 connections that send one kind of gRPC call at a fraction of the h2 crate's cost. The
//! generator of `answers` shares two cores with the server and Redis, so the CPU that it takes is
//! CPU that they lack, most of all when calls pile up.
//!
//! Only what these calls need is implemented. All calls have the same headers, which are encoded
//! once. The headers of responses are not decoded: a response with a message is a decision, because
//! the servers here send no message with an error.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::drive;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD_BYTES: usize = 9;

/// Frame types (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Flags.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Identifiers of settings.
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// Window of a connection before any update, and of a stream.
const DEFAULT_WINDOW: usize = 65_535;
const LARGEST_WINDOW: usize = (1 << 31) - 1;

/// Indices of fields in HPACK's static table (RFC 7541, appendix A).
const METHOD_POST: u8 = 3;
const SCHEME_HTTP: u8 = 6;
/// Indices of names in that table.
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const CONTENT_TYPE: u8 = 31;
/// Index of the field that was added to the dynamic table last.
const NEWEST: u8 = 62;
/// First bits of a field that is in a table, and of a field that is added to the dynamic table.
const INDEXED: u8 = 0x80;
const ADDED: u8 = 0x40;

/// Answer to a call.
pub struct Answer {
    /// Number of the call.
    pub call: usize,
    pub wait: Duration,
    /// Overall code of the decision; `None` if the call was not decided.
    pub code: Option<Code>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ok,
    OverLimit,
}

/// Call that waits for a free stream or for its answer.
#[derive(Clone, Copy)]
struct Call {
    number: usize,
    from: Instant,
    code: Option<Code>,
}

/// Connection and its calls.
pub struct Caller {
    socket: TcpStream,
    /// Frames that the socket has not taken yet.
    unsent: Vec<u8>,
    received: Vec<u8>,
    /// Header block of the first call, which fills the dynamic table; `None` once it is sent.
    first_block: Option<Vec<u8>>,
    /// Header block of all other calls.
    block: Vec<u8>,
    bodies: Vec<Bytes>,
    /// Calls that have not been sent.
    queue: VecDeque<Call>,
    /// Calls by stream, from the oldest without an answer; `None` if a call has been answered.
    sent: VecDeque<Option<Call>>,
    /// Number of streams before those of `sent`. Stream number n has the identifier 2n + 1.
    completed: usize,
    in_flight: usize,
    streams_max: usize,
    /// Bytes that the connection's flow-control window still allows.
    window: usize,
}

impl Caller {
    /// Connects. `deadline` is the value of the header `grpc-timeout`, in milliseconds; `None`
    /// omits the header.
    pub fn connect(port: u16, bodies: &[Bytes], deadline: Option<u64>) -> Caller {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let (first_block, block) = header_blocks(deadline);
        let mut unsent = PREFACE.to_vec();
        let window = u32::try_from(LARGEST_WINDOW).unwrap();
        let settings = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window.to_be_bytes()].concat();
        push_frame(&mut unsent, SETTINGS, 0, 0, &settings);
        let more = window - DEFAULT_WINDOW as u32;
        push_frame(&mut unsent, WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        Caller {
            socket,
            unsent,
            received: Vec::new(),
            first_block: Some(first_block),
            block,
            bodies: bodies.to_vec(),
            queue: VecDeque::new(),
            sent: VecDeque::new(),
            completed: 0,
            in_flight: 0,
            streams_max: 1,
            window: DEFAULT_WINDOW,
        }
    }

    /// Queues a call, whose wait begins at `from`. `number` selects its body.
    pub fn call(&mut self, number: usize, from: Instant) {
        self.queue.push_back(Call { number, from, code: None });
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty()
    }

    /// Writes queued calls, as far as the server's limits and the socket allow.
    pub fn write(&mut self) {
        while self.in_flight < self.streams_max
            && let Some(call) = self.queue.front()
        {
            let body = &self.bodies[call.number % self.bodies.len()];
            if body.len() > self.window {
                break;
            }
            self.window -= body.len();
            let stream = u32::try_from((self.completed + self.sent.len()) * 2 + 1).unwrap();
            let first = self.first_block.take();
            let block = first.as_deref().unwrap_or(&self.block);
            push_frame(&mut self.unsent, HEADERS, END_HEADERS, stream, block);
            push_frame(&mut self.unsent, DATA, END_STREAM, stream, body);
            self.in_flight += 1;
            self.sent.push_back(self.queue.pop_front());
        }
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => panic!("the server closed a connection: {error}"),
            }
        }
    }

    /// Reads the frames that have arrived, and passes each answer to `on_answer`.
    pub fn read(&mut self, on_answer: &mut dyn FnMut(&mut Caller, Answer)) {
        let mut chunk = [0; 65_536];
        loop {
            match self.socket.read(&mut chunk) {
                Ok(0) => panic!("the server closed a connection"),
                Ok(length) => {
                    self.received.extend_from_slice(&chunk[..length]);
                    self.read_frames(on_answer);
                    if length < chunk.len() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => panic!("the server closed a connection: {error}"),
            }
        }
    }

    fn read_frames(&mut self, on_answer: &mut dyn FnMut(&mut Caller, Answer)) {
        let now = Instant::now();
        let received = std::mem::take(&mut self.received);
        let mut rest = &received[..];
        while let Some((head, tail)) = rest.split_first_chunk::<FRAME_HEAD_BYTES>() {
            let [a, b, c, kind, flags, stream @ ..] = *head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((payload, tail)) = tail.split_at_checked(length) else { break };
            self.read_frame(kind, flags, u32::from_be_bytes(stream), payload, now, on_answer);
            rest = tail;
        }
        let rest = rest.len();
        self.received = received;
        self.received.drain(..self.received.len() - rest);
    }

    fn read_frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        now: Instant,
        on_answer: &mut dyn FnMut(&mut Caller, Answer),
    ) {
        let number = || u32::from_be_bytes(payload.try_into().expect("a number")) as usize;
        match kind {
            DATA if !payload.is_empty() => {
                // Five bytes of framing, then field 1 of the response: the overall code. The no-op
                // server answers with an empty message.
                let code = match payload.get(5..7) {
                    Some([0x08, 2]) => Code::OverLimit,
                    _ => Code::Ok,
                };
                self.call_on(stream).code = Some(code);
            }
            RST_STREAM => self.call_on(stream).code = None,
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.as_chunks::<6>().0 {
                    let [a, b, value @ ..] = *setting;
                    let value = u32::from_be_bytes(value) as usize;
                    match u16::from_be_bytes([a, b]) {
                        MAX_CONCURRENT_STREAMS => self.streams_max = value,
                        INITIAL_WINDOW_SIZE => {
                            let longest = self.bodies.iter().map(Bytes::len).max();
                            assert!(longest <= Some(value), "a call fits into a stream's window");
                        }
                        _ => {}
                    }
                }
                push_frame(&mut self.unsent, SETTINGS, ACK, 0, &[]);
            }
            PING if flags & ACK == 0 => push_frame(&mut self.unsent, PING, ACK, 0, payload),
            GOAWAY => panic!("the server ends a connection"),
            WINDOW_UPDATE if stream == 0 => self.window += number(),
            _ => {}
        }
        let is_last = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        if is_last || kind == RST_STREAM {
            self.complete(stream, now, on_answer);
        }
    }

    fn call_on(&mut self, stream: u32) -> &mut Call {
        let at = (stream / 2) as usize - self.completed;
        self.sent[at].as_mut().expect("an answer to a call without one")
    }

    fn complete(
        &mut self,
        stream: u32,
        now: Instant,
        on_answer: &mut dyn FnMut(&mut Caller, Answer),
    ) {
        let at = (stream / 2) as usize - self.completed;
        let call = self.sent[at].take().expect("an answer to a call without one");
        self.in_flight -= 1;
        while let Some(None) = self.sent.front() {
            self.sent.pop_front();
            self.completed += 1;
        }
        on_answer(self, Answer { call: call.number, wait: now - call.from, code: call.code });
    }
}

/// Waits until a socket is readable, or writable if frames are left to write, or until `end`. Then
/// reads from all readable sockets, and passes each answer to `on_answer`.
pub fn read_until(
    callers: &mut [Caller],
    end: Instant,
    on_answer: &mut dyn FnMut(&mut Caller, Answer),
) {
    let left = end.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut ready: Vec<PollFd<'_>> = callers.iter().map(poll_fd).collect();
    poll(&mut ready, Some(&timeout)).expect("sockets can be polled");
    let ready: Vec<bool> =
        ready.iter().map(|socket| socket.revents().contains(PollFlags::IN)).collect();
    for (caller, _) in callers.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
        caller.read(on_answer);
    }
}

fn poll_fd(caller: &Caller) -> PollFd<'_> {
    let room = if caller.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
    PollFd::new(&caller.socket, PollFlags::IN | room)
}

/// Returns the header block of the first call, and that of all others, which refers to the dynamic
/// table.
fn header_blocks(deadline: Option<u64>) -> (Vec<u8>, Vec<u8>) {
    let timeout = deadline.map(|deadline| format!("{deadline}m"));
    let mut fields = vec![
        (Some(AUTHORITY), "", "127.0.0.1"),
        (Some(PATH), "", drive::PATH),
        (Some(CONTENT_TYPE), "", "application/grpc"),
        (None, "te", "trailers"),
    ];
    fields.extend(timeout.as_deref().map(|timeout| (None, "grpc-timeout", timeout)));
    let mut first = vec![INDEXED | METHOD_POST, INDEXED | SCHEME_HTTP];
    let mut others = first.clone();
    for (at, (index, name, value)) in fields.iter().enumerate() {
        first.push(ADDED | index.unwrap_or(0));
        if index.is_none() {
            push_string(&mut first, name);
        }
        push_string(&mut first, value);
        others.push(INDEXED | (NEWEST + (fields.len() - 1 - at) as u8));
    }
    (first, others)
}

/// Appends a string without Huffman coding.
fn push_string(block: &mut Vec<u8>, text: &str) {
    // A length of 127 and more has a form of its own.
    let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
    block.push(length.expect("a short text"));
    block.extend_from_slice(text.as_bytes());
}

fn push_frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, a, b, c] = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    to.extend_from_slice(&[a, b, c, kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}
