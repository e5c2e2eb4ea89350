//! Calls over the bare HTTP/2 library, so that the machine is left to the server.

use std::cell::Cell;
use std::error::Error;

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

/// Some connections to a server, used in turn.
#[derive(Debug)]
pub(crate) struct Target {
    senders: Vec<SendRequest<Bytes>>,
    next: Cell<usize>,
    uri: String,
}

/// Why a call has no decision.
#[derive(Debug)]
pub(crate) struct NoAnswer;

impl Target {
    pub(crate) async fn connect(target: &str, connections: u32) -> Result<Self, Box<dyn Error>> {
        let mut senders = Vec::new();
        for _ in 0..connections {
            let tcp = TcpStream::connect(target).await?;
            tcp.set_nodelay(true)?;
            let (sender, connection) = h2::client::Builder::new()
                .initial_connection_window_size(WINDOW_BYTES)
                .handshake(tcp)
                .await?;
            tokio::task::spawn_local(async move {
                // Its end shows in the calls that it ends.
                let _ = connection.await;
            });
            senders.push(sender);
        }
        Ok(Target { senders, next: Cell::new(0), uri: format!("http://{target}{PATH}") })
    }

    /// One call; true if it was refused.
    pub(crate) fn call(&self, body: Bytes) -> impl Future<Output = Result<bool, NoAnswer>> + use<> {
        let at = self.next.get();
        self.next.set((at + 1) % self.senders.len());
        let sender = self.senders[at].clone();
        let head = Request::post(&self.uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(());
        async move { one(sender, head.map_err(|_| NoAnswer)?, body).await }
    }
}

impl From<h2::Error> for NoAnswer {
    fn from(_: h2::Error) -> Self {
        NoAnswer
    }
}

async fn one(sender: SendRequest<Bytes>, head: Request<()>, body: Bytes) -> Result<bool, NoAnswer> {
    let mut sender = sender.ready().await?;
    let (response, mut stream) = sender.send_request(head, false)?;
    stream.send_data(body, true)?;
    let response = response.await?;
    if response.headers().get("grpc-status").is_some_and(|status| status != "0") {
        return Err(NoAnswer);
    }
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    let trailers = body.trailers().await?;
    let told = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
    if told.is_none_or(|status| status != "0") {
        return Err(NoAnswer);
    }
    let message = bytes.get(PREFIX_BYTES..).ok_or(NoAnswer)?;
    let answer = RateLimitResponse::decode(message).map_err(|_| NoAnswer)?;
    Ok(answer.overall_code == OVER_LIMIT)
}

/// The framed message that asks for the value of this number.
pub(crate) fn question(domain: &str, key: &str, value: u32) -> Bytes {
    let entry = Entry { key: key.to_owned(), value: format!("v{value}") };
    let descriptors = vec![Descriptor { entries: vec![entry] }];
    let message = RateLimitRequest { domain: domain.to_owned(), descriptors };
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0);
    framed.put_u32(length as u32);
    framed.put_slice(&message.encode_to_vec());
    framed.freeze()
}
