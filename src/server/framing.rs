//! gRPC's framing of a unary call: five bytes before the message, two trailers after it.
//!
//! The way of a decision goes past tonic's server: its codec allocates 8 KiB for each direction of
//! each call and its router boxes every future, together about a third of what a decision costs;
//! and it answers OUT_OF_RANGE and INTERNAL where this service promises INVALID_ARGUMENT.
//! Everything else (health, reflection, unknown methods) stays with tonic.
//!
//! Not here: what the messages mean.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use prost::Message;
use tonic::Status;

use crate::wire::decode::{DecodeError, MESSAGE_BYTES_MAX};

/// A flag and a length of four bytes precede each message.
const PREFIX_BYTES: usize = 5;
/// The flag of a message that is not compressed.
const PLAIN: u8 = 0;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Made once: from a text, the name would be read and checked with every call.
static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The body of an answer.
#[derive(Default)]
pub(crate) struct Reply(State);

#[derive(Default)]
enum State {
    /// Nothing, or nothing any more.
    #[default]
    Ended,
    /// A message with its prefix; then the trailers.
    Message(Bytes),
    /// The trailers of a call that went well.
    Trailers,
    /// An answer of tonic's.
    Foreign(tonic::body::Body),
}

impl Reply {
    /// An answer of tonic's.
    pub(crate) fn foreign(body: tonic::body::Body) -> Self {
        Reply(State::Foreign(body))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let State::Foreign(body) = &mut self.0 {
            return Pin::new(body).poll_frame(cx);
        }
        let (frame, next) = match std::mem::take(&mut self.0) {
            State::Message(message) => (Some(Ok(Frame::data(message))), State::Trailers),
            State::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                (Some(Ok(Frame::trailers(trailers))), State::Ended)
            }
            State::Ended | State::Foreign(_) => (None, State::Ended),
        };
        self.0 = next;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            State::Ended => true,
            State::Message(_) | State::Trailers => false,
            State::Foreign(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Foreign(body) => body.size_hint(),
            State::Ended | State::Message(_) | State::Trailers => SizeHint::default(),
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reply(..)")
    }
}

/// What a request must be before gRPC can answer it: a POST of `application/grpc`, in any of its
/// encodings. Anything else gets the HTTP status that says so.
pub(crate) fn refused_as_http<B>(request: &Request<B>) -> Option<Response<Reply>> {
    let status = if request.method() != Method::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !is_grpc(request.headers()) {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    } else {
        return None;
    };
    let mut response = Response::new(Reply::default());
    *response.status_mut() = status;
    Some(response)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else { return false };
    match content_type.as_bytes().strip_prefix(GRPC.as_bytes()) {
        Some([]) => true,
        // `application/grpc+proto` and `application/grpc;…`, but not `application/grpc-web`.
        Some([next, ..]) => matches!(next, b'+' | b';' | b' '),
        None => false,
    }
}

/// Reads the one message of a unary call.
///
/// # Errors
///
/// INVALID_ARGUMENT if it is longer than [`MESSAGE_BYTES_MAX`], not whole, or not the only one;
/// UNIMPLEMENTED if it is compressed; CANCELLED if the caller went away.
pub(crate) async fn read(body: &mut Incoming) -> Result<Bytes, Status> {
    let first = next_chunk(body).await?.unwrap_or_default();
    // Envoy ends the stream with the message itself; others send an empty frame behind it. It has
    // to be waited for: an answer that overtakes it would reset the stream.
    if body.is_end_stream() {
        return unframed(first);
    }
    let mut whole = BytesMut::new();
    let mut only = Some(first);
    while let Some(chunk) = next_chunk(body).await? {
        if chunk.is_empty() {
            continue;
        }
        if let Some(first) = only.take() {
            whole.extend_from_slice(&first);
        }
        if whole.len() + chunk.len() > PREFIX_BYTES + MESSAGE_BYTES_MAX {
            return Err(DecodeError::MessageTooLong.into());
        }
        whole.extend_from_slice(&chunk);
    }
    unframed(only.unwrap_or_else(|| whole.freeze()))
}

async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(_)) => return Err(Status::cancelled("the request ended early")),
            Some(Ok(frame)) => {
                if let Ok(chunk) = frame.into_data() {
                    return Ok(Some(chunk));
                }
            }
        }
    }
}

/// Cuts the prefix off.
fn unframed(mut framed: Bytes) -> Result<Bytes, Status> {
    let [flag, a, b, c, d, message @ ..] = framed.as_ref() else {
        return Err(Status::invalid_argument("a unary call has one message"));
    };
    if *flag != PLAIN {
        return Err(Status::unimplemented("compressed messages are not accepted"));
    }
    let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        return Err(DecodeError::MessageTooLong.into());
    }
    if length != message.len() {
        return Err(Status::invalid_argument("a unary call has one message, and all of it"));
    }
    Ok(framed.split_off(PREFIX_BYTES))
}

/// The answer to a unary call.
pub(crate) fn response(message: &impl Message) -> Response<Reply> {
    let length = message.encoded_len();
    // prost writes to a `Vec` with fewer instructions than to a `BytesMut`: 3 % of a call with one
    // descriptor, 10 % with ten.
    let mut framed = Vec::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(PLAIN);
    // A response is a few kilobytes: 64 statuses, two bodies' worth of headers.
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut framed);
    let mut response = Response::new(Reply(State::Message(framed.into())));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The caller's deadline: how long from now it waits for an answer. A malformed one is none.
pub(crate) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(&GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // At most eight digits, by the protocol; nothing overflows then.
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        deadline(&headers)
    }

    #[test]
    fn a_deadline_is_read_and_a_malformed_one_ignored() {
        assert_eq!(timeout("20m"), Some(Duration::from_millis(20)));
        assert_eq!(timeout("0n"), Some(Duration::ZERO));
        assert_eq!(timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        for malformed in ["", "m", "20", "20x", "-1m", "1.5S", "999999999S", "1 S", "2Om"] {
            assert_eq!(timeout(malformed), None, "{malformed:?}");
        }
        assert_eq!(deadline(&HeaderMap::new()), None);
    }

    fn framed(flag: u8, length: u32, message: &[u8]) -> Bytes {
        let mut framed = BytesMut::new();
        framed.put_u8(flag);
        framed.put_u32(length);
        framed.extend_from_slice(message);
        framed.freeze()
    }

    #[test]
    fn a_message_is_cut_out_of_its_frame_or_refused() {
        assert_eq!(unframed(framed(0, 3, b"abc")).unwrap(), "abc");
        assert_eq!(unframed(framed(0, 0, b"")).unwrap(), "");
        let code = |bytes| unframed(bytes).unwrap_err().code();
        assert_eq!(code(Bytes::new()), tonic::Code::InvalidArgument);
        assert_eq!(code(framed(0, 4, b"abc")), tonic::Code::InvalidArgument);
        assert_eq!(code(framed(0, 2, b"abc")), tonic::Code::InvalidArgument);
        assert_eq!(code(framed(0, u32::MAX, b"abc")), tonic::Code::InvalidArgument);
        assert_eq!(code(framed(1, 3, b"abc")), tonic::Code::Unimplemented);
        let status = unframed(framed(0, 4_194_305, b"")).unwrap_err();
        assert_eq!(status.message(), "the message is longer than 4194304 bytes");
    }

    #[test]
    fn only_a_post_of_grpc_is_a_call() {
        let status = |method: Method, content_type: &str| {
            let request = Request::builder()
                .method(method)
                .header(CONTENT_TYPE, content_type)
                .body(())
                .unwrap();
            refused_as_http(&request).map(|response| response.status().as_u16())
        };
        assert_eq!(status(Method::POST, "application/grpc"), None);
        assert_eq!(status(Method::POST, "application/grpc+proto"), None);
        assert_eq!(status(Method::POST, "application/json"), Some(415));
        assert_eq!(status(Method::POST, "application/grpc-web"), Some(415));
        assert_eq!(status(Method::GET, "application/grpc"), Some(405));
    }
}
