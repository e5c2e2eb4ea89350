//! HTTP/2 client for malformed traffic: calls with any headers and body, and single frames.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::wait::within;

/// Shorter than the server's default drain (25 s) and keepalive (30 s), so that these never end a wait.
const PATIENCE: Duration = Duration::from_secs(20);

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Frame types.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Flags of DATA and HEADERS frames.
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Response to a call.
#[derive(Debug)]
pub struct Answer {
    pub http_status: u16,
    /// -1 if the response had none.
    pub grpc_status: i32,
    pub grpc_message: String,
    #[allow(dead_code, reason = "failing assertions print it")]
    pub body: Vec<u8>,
}

/// A connection by h2 itself.
pub async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let socket = within(PATIENCE, "connecting", TcpStream::connect(address)).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (send, connection) = h2::client::Builder::new()
        .initial_max_send_streams(1_000)
        .max_concurrent_reset_streams(100_000)
        .handshake(socket)
        .await
        .unwrap();
    tokio::spawn(connection);
    send
}

/// A gRPC frame.
pub fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::from(&[0][..]);
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(message);
    framed.freeze()
}

/// A call as it should be, but for what a test changes.
pub fn call() -> http::request::Builder {
    Request::builder()
        .method("POST")
        .uri(format!("http://tidegate{METHOD}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

/// Sends `body` under `request` and reads all that comes back.
pub async fn exchange(
    send: &SendRequest<Bytes>,
    request: http::request::Builder,
    body: Bytes,
) -> Result<Answer, h2::Error> {
    let mut send = send.clone().ready().await?;
    let (response, mut stream) = send.send_request(request.body(()).unwrap(), false)?;
    let sent = send_all(&mut stream, body);
    let read = async {
        let (head, mut body) = response.await?.into_parts();
        let mut bytes = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        let trailers = body.trailers().await?.unwrap_or_default();
        let text = |name| {
            let value = trailers.get(name).or(head.headers.get(name));
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        Ok(Answer {
            http_status: head.status.as_u16(),
            grpc_status: text("grpc-status").map_or(-1, |code| code.parse().unwrap()),
            grpc_message: text("grpc-message").unwrap_or_default(),
            body: bytes,
        })
    };
    let (_, answer) = within(PATIENCE, "an answer", async { tokio::join!(sent, read) }).await;
    answer
}

/// Sends the body as the window allows; an error means that the server has answered already.
async fn send_all(stream: &mut h2::SendStream<Bytes>, mut body: Bytes) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(granted) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return Ok(());
        };
        stream.send_data(body.split_to(granted?), false)?;
    }
    stream.send_data(Bytes::new(), true)
}

/// A bare socket.
pub async fn socket(address: SocketAddr) -> TcpStream {
    within(PATIENCE, "connecting", TcpStream::connect(address)).await.unwrap()
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// HPACK block with the headers of a call, each as a literal that is not indexed.
pub fn header_block() -> Vec<u8> {
    headers_for(METHOD)
}

/// The same for a call to another method.
pub fn headers_for(path: &str) -> Vec<u8> {
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "a"),
        ("content-type", "application/grpc"),
    ];
    let literal = |(name, value): (&str, &str)| {
        [&[0, name.len() as u8][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()]
            .concat()
    };
    headers.into_iter().flat_map(literal).collect()
}

/// A socket that has shaken hands.
pub async fn begun(address: SocketAddr) -> TcpStream {
    let mut socket = socket(address).await;
    socket.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    socket
}

/// The next frame: its kind and payload; `None` once the server has closed.
pub async fn next_frame(socket: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    next_stream_frame(socket).await.map(|(kind, _, payload)| (kind, payload))
}

/// The next frame: its kind, stream, and payload; `None` once the server has closed.
pub async fn next_stream_frame(
    socket: &mut (impl AsyncRead + Unpin),
) -> Option<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    within(PATIENCE, "a frame", socket.read_exact(&mut head)).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    within(PATIENCE, "a payload", socket.read_exact(&mut payload)).await.ok()?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some((head[3], stream, payload))
}

/// Reads until the server closes; `true` if it said GOAWAY before.
pub async fn read_until_closed(socket: &mut TcpStream) -> bool {
    let mut goaway = false;
    while let Some((kind, _)) = next_frame(socket).await {
        goaway |= kind == GOAWAY;
    }
    goaway
}

/// Raises the limit of open files: a client needs as many as the server that it attacks.
pub fn open_files(needed: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let granted = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed as u64);
    assert!(enough(granted.maximum), "needs {needed} open files: ulimit -Hn {needed}, as root");
    if !enough(granted.current) {
        let raised = Rlimit { current: granted.maximum, maximum: granted.maximum };
        setrlimit(Resource::Nofile, raised).unwrap();
    }
}
