//! gRPC caller over bare HTTP/2, as Envoy's filter is one: one long-lived connection, reopened when
//! it is lost; a call is never sent twice.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use prost::Message;
use tokio::net::TcpStream;

use crate::messages::{Descriptor, Entry, OVER_LIMIT, RateLimitRequest, RateLimitResponse};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Before a gRPC message: a flag for compression and four bytes of length.
const PREFIX_BYTES: usize = 5;
/// Answers are a few dozen bytes: this never fills.
const WINDOW_BYTES: u32 = 32 << 20;
/// Calls on a connection before its settings have come, as many as Envoy starts.
const FIRST_CALLS_MAX: usize = 1_024;
/// An answer that has not come by then is none: far beyond every budget and every fault.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a call was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    Admitted,
    Refused,
    /// A gRPC status other than 0.
    Failed(u8),
    /// No answer: no connection, or it ended, or patience did.
    Lost,
    /// Not even asked: too many calls had no answer yet.
    NotSent,
}

/// One connection to a Tidegate, made when it is needed.
#[derive(Debug)]
pub struct Caller {
    address: SocketAddr,
    sender: RefCell<Option<SendRequest<Bytes>>>,
}

/// The connection failed.
struct ConnectionLost;

impl From<h2::Error> for ConnectionLost {
    fn from(_: h2::Error) -> Self {
        ConnectionLost
    }
}

impl From<std::io::Error> for ConnectionLost {
    fn from(_: std::io::Error) -> Self {
        ConnectionLost
    }
}

impl Caller {
    pub fn new(address: SocketAddr) -> Caller {
        Caller { address, sender: RefCell::new(None) }
    }

    /// Asks once.
    pub async fn ask(&self, body: Bytes) -> CallResult {
        let asked = tokio::time::timeout(PATIENCE, self.ask_whole(body)).await;
        asked.ok().and_then(Result::ok).unwrap_or(CallResult::Lost)
    }

    async fn ask_whole(&self, body: Bytes) -> Result<CallResult, ConnectionLost> {
        let mut sender = self.ready().await?;
        let head = Request::post(format!("http://{}{PATH}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(|_| ConnectionLost)?;
        let (response, mut stream) = sender.send_request(head, false)?;
        stream.send_data(body, true)?;
        let response = response.await?;
        if let Some(code) = failed(response.headers()) {
            return Ok(CallResult::Failed(code));
        }
        let mut body = response.into_body();
        let mut bytes = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        let trailers = body.trailers().await?.unwrap_or_default();
        if let Some(code) = failed(&trailers) {
            return Ok(CallResult::Failed(code));
        }
        let message = bytes.get(PREFIX_BYTES..).ok_or(ConnectionLost)?;
        let answer = RateLimitResponse::decode(message).map_err(|_| ConnectionLost)?;
        let refused = answer.overall_code == OVER_LIMIT;
        Ok(if refused { CallResult::Refused } else { CallResult::Admitted })
    }

    /// The connection, a new one where the old one is gone: nothing was sent yet.
    async fn ready(&self) -> Result<SendRequest<Bytes>, ConnectionLost> {
        let held = self.sender.borrow().clone();
        if let Some(sender) = held
            && let Ok(ready) = sender.ready().await
        {
            return Ok(ready);
        }
        let tcp = TcpStream::connect(self.address).await?;
        tcp.set_nodelay(true)?;
        let mut settings = h2::client::Builder::new();
        settings
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_max_send_streams(FIRST_CALLS_MAX);
        let (sender, connection) = settings.handshake(tcp).await?;
        tokio::task::spawn_local(async move {
            // Its end shows in the calls that it ends.
            let _ = connection.await;
        });
        *self.sender.borrow_mut() = Some(sender.clone());
        Ok(sender.ready().await?)
    }
}

fn failed(headers: &http::HeaderMap) -> Option<u8> {
    let status = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    (status != 0).then_some(status)
}

/// A call with one descriptor for each of these lists of entries, framed.
pub fn question(descriptors: &[&[(&str, &str)]]) -> Bytes {
    let entry =
        |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    let descriptors = descriptors
        .iter()
        .map(|entries| Descriptor { entries: entries.iter().map(entry).collect() })
        .collect();
    let message = RateLimitRequest { domain: "faults".to_owned(), descriptors };
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0);
    framed.put_u32(length as u32);
    framed.put_slice(&message.encode_to_vec());
    framed.freeze()
}
