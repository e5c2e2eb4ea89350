//! A closed-loop driver: so many calls in flight over so many connections, on the bare HTTP/2
//! library, so that the generator leaves the machine to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;

pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Requests as gRPC frames, which all callers share.
pub type Bodies = Arc<[Bytes]>;

/// Where the next run begins. If every run began with the first body, short runs over a million keys
/// would touch the same few thousand.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Counts of the answers of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Calls answered with grpc-status 0.
    pub answered: usize,
    /// Those whose message begins with the overall code OK, as every admitted call's does.
    pub ok: usize,
    /// Those whose message begins with OVER_LIMIT.
    pub over_limit: usize,
    /// Calls answered otherwise, or not at all.
    pub failed: usize,
}

impl Seen {
    fn add(&mut self, code: Option<u8>) {
        self.answered += 1;
        self.ok += usize::from(code == Some(CODE_OK));
        self.over_limit += usize::from(code == Some(CODE_OVER_LIMIT));
    }
}

const CODE_OK: u8 = 1;
const CODE_OVER_LIMIT: u8 = 2;
/// Tag of field 1, a varint: the overall code.
const OVERALL_CODE: u8 = 0x08;
/// Bytes of gRPC's framing in front of a message.
const FRAMING: usize = 5;

/// Drives `calls` calls with `connections` × `streams` in flight; `bodies` are taken in turn.
pub fn run(port: u16, bodies: &Bodies, calls: usize, connections: usize, streams: usize) -> Seen {
    run_path(PATH, port, bodies, calls, connections, streams)
}

/// The same with another method.
pub fn run_path(
    path: &'static str,
    port: u16,
    bodies: &Bodies,
    calls: usize,
    connections: usize,
    streams: usize,
) -> Seen {
    let callers = connections * streams;
    let each = calls / callers;
    let first = NEXT.fetch_add(callers * each, Ordering::Relaxed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for connection in 0..connections {
            let sender = connect(port).await;
            for stream in 0..streams {
                let first = first + connection * streams + stream;
                let turns = (0..each).map(move |nth| first + nth * callers);
                tasks.push(tokio::spawn(caller(path, sender.clone(), bodies.clone(), turns)));
            }
        }
        let mut total = Seen::default();
        for task in tasks {
            let seen = task.await.unwrap();
            total.answered += seen.answered;
            total.ok += seen.ok;
            total.over_limit += seen.over_limit;
            total.failed += seen.failed;
        }
        total
    })
}

pub async fn connect(port: u16) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
    tcp.set_nodelay(true).unwrap();
    let (sender, connection) = h2::client::Builder::new()
        .initial_connection_window_size(32 << 20)
        .handshake(tcp)
        .await
        .expect("an HTTP/2 server");
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

async fn caller(
    path: &str,
    sender: SendRequest<Bytes>,
    bodies: Bodies,
    turns: impl ExactSizeIterator<Item = usize>,
) -> Seen {
    let mut seen = Seen::default();
    let mut sender = Some(sender);
    let mut left = turns.len();
    for turn in turns {
        let Ok(mut ready) = sender.take().unwrap().ready().await else {
            seen.failed += left;
            return seen;
        };
        left -= 1;
        match call(path, &mut ready, bodies[turn % bodies.len()].clone()).await {
            Ok(message) => seen.add(overall_code(&message)),
            Err(_) => seen.failed += 1,
        }
        sender = Some(ready);
    }
    seen
}

fn overall_code(message: &[u8]) -> Option<u8> {
    match message.get(FRAMING..FRAMING + 2) {
        Some(&[OVERALL_CODE, code]) => Some(code),
        _ => None,
    }
}

/// Calls once, and returns the message without its framing.
pub fn once(port: u16, body: &Bytes) -> Bytes {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut sender = connect(port).await.ready().await.expect("a stream");
        let message = call(PATH, &mut sender, body.clone()).await.expect("the call is answered");
        message.slice(FRAMING..)
    })
}

/// Calls, and returns the frame of the answer.
pub async fn call(
    path: &str,
    sender: &mut SendRequest<Bytes>,
    body: Bytes,
) -> Result<Bytes, h2::Error> {
    let head = Request::post(format!("http://127.0.0.1{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a fixed request");
    let (response, mut stream) = sender.send_request(head, false)?;
    stream.send_data(body, true)?;
    let response = response.await?;
    let mut failed = response.headers().get("grpc-status").is_some_and(|status| status != "0");
    let mut body = response.into_body();
    let mut message = Bytes::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        // Nearly every answer is one chunk, which needs no copy.
        message = if message.is_empty() { chunk } else { [message, chunk].concat().into() };
    }
    if let Some(trailers) = body.trailers().await? {
        failed |= trailers.get("grpc-status").is_some_and(|status| status != "0");
    }
    if failed { Err(h2::Error::from(h2::Reason::INTERNAL_ERROR)) } else { Ok(message) }
}
