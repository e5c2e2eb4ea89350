//! HTTP/1.1 client written by hand: tests send bytes that no library lets through, from addresses
//! they choose.

use std::io::{ErrorKind, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use socket2::{Domain, SockRef, Socket, Type};

use crate::support::wait::PATIENCE;

/// A request, without a body unless it is given one.
#[derive(Clone, Debug)]
pub struct Request {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, Vec<u8>)>,
    from: Ipv4Addr,
    body: String,
}

/// A request under way.
pub struct PendingRequest(TcpStream);

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

pub fn get(path: &str) -> Request {
    let (headers, from, body) = (Vec::new(), Ipv4Addr::LOCALHOST, String::new());
    Request { method: "GET", path: path.to_owned(), headers, from, body }
}

pub fn post(path: &str) -> Request {
    Request { method: "POST", ..get(path) }
}

impl Request {
    /// With a header; the value goes out byte for byte.
    pub fn with(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_vec()));
        self
    }

    /// With a body.
    pub fn with_body(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }

    /// From the address `127.0.0.<last>`: on Linux all of 127.0.0.0/8 is this machine.
    pub fn from(mut self, last: u8) -> Self {
        self.from = Ipv4Addr::new(127, 0, 0, last);
        self
    }

    /// Sends it on a connection of its own and waits for the answer.
    pub fn send(&self, to: SocketAddr) -> Reply {
        self.begin(to).finish()
    }

    /// Sends it on a connection of its own. The client gives up if what this returns is dropped.
    pub fn begin(&self, to: SocketAddr) -> PendingRequest {
        let mut stream = self.connect(to);
        stream.write_all(&self.bytes()).expect("the edge takes the request");
        PendingRequest(stream)
    }

    fn connect(&self, to: SocketAddr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((self.from, 0)).into()).expect("a loopback address");
        socket.connect(&to.into()).unwrap_or_else(|error| panic!("the edge at {to}: {error}"));
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout that is not zero");
        stream
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Request { method, path, .. } = self;
        // The debug port answers to names of this machine only.
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        bytes.extend_from_slice(head.as_bytes());
        for (name, value) in &self.headers {
            bytes.extend_from_slice(format!("{name}: ").as_bytes());
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        let body = &self.body;
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        bytes
    }
}

impl PendingRequest {
    /// Whether an answer has begun to come.
    pub fn is_answered(&self) -> bool {
        peek(&self.0) != SocketState::Silent
    }

    /// Waits for the answer.
    pub fn finish(mut self) -> Reply {
        let mut answer = Vec::new();
        self.0.read_to_end(&mut answer).expect("the edge answers and closes");
        Reply::parse(&answer)
    }
}

impl Reply {
    fn parse(answer: &[u8]) -> Reply {
        let text = String::from_utf8_lossy(answer).into_owned();
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let mut reply =
            Reply { status: status.parse().expect("a number"), headers, body: body.to_owned() };
        if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = joined(body);
        }
        reply
    }

    /// The value of a header.
    ///
    /// # Panics
    ///
    /// If it occurs more than once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(held, _)| held == name);
        let first = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} stands in {self:?} more than once");
        first
    }

    /// The value of a header that is a whole number.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }
}

/// What a connection has for whoever reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    Silent,
    Bytes,
    Closed,
}

/// Looks, without taking a byte or waiting for one.
pub fn peek(stream: &TcpStream) -> SocketState {
    /// `MSG_PEEK | MSG_DONTWAIT`, as Linux numbers them.
    const LOOK_ONLY: i32 = 0x02 | 0x40;
    let mut byte = [MaybeUninit::uninit()];
    match SockRef::from(stream).recv_with_flags(&mut byte, LOOK_ONLY) {
        Ok(0) => SocketState::Closed,
        Ok(_) => SocketState::Bytes,
        Err(error) if error.kind() == ErrorKind::WouldBlock => SocketState::Silent,
        Err(_) => SocketState::Closed,
    }
}

/// A body without the sizes of its chunks.
fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = chunks.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        body.push_str(&rest[..size]);
        chunks = rest[size..].trim_start();
    }
    body
}
