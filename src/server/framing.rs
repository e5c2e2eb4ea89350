//! gRPC framing of a unary call, by tonic's server types.
//!
//! Three things differ from the server that tonic generates:
//!
//! - The body is collected before tonic reads it. tonic allocates the length that a prefix announces
//!   before the message arrives: 7,200 calls of five bytes each made it hold more than 2 GiB.
//! - The codec's buffers fit small messages; the default is 8 KiB for each direction of each call.
//! - A body that is not one message gets INVALID_ARGUMENT, and UNIMPLEMENTED if it is compressed.
//!   tonic says INTERNAL or OUT_OF_RANGE, and ignores a second message.
//!
//! Compared with framing by hand, tonic's types cost 8 % more instructions per call with one
//! descriptor, 7 % with two, 5 % with ten (load/results/grpc.txt). The limit for keeping framing of
//! our own was 10 %.
//!
//! Not here: what the messages mean (`wire`).

use std::future::Future;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};

use crate::wire::decode::{DecodeError, MESSAGE_BYTES_MAX};

/// Bytes before each message: a flag and the length.
const PREFIX_BYTES: usize = 5;

/// Initial size of the buffer that a request is decoded from. tonic needs room for twice the message
/// to not allocate again; a message of four descriptors has about 300 bytes.
const DECODE_BUFFER_BYTES: usize = 1024;

/// Initial size of the buffer that a response is framed in: 16 statuses of about 30 bytes.
const ENCODE_BUFFER_BYTES: usize = 512;

/// How much of a stream of messages tonic gathers before it sends; of no effect for one message.
const YIELD_THRESHOLD_BYTES: usize = 32 * 1024;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// A constant, because the lookup of a `&str` parses it on each call.
static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns the HTTP response to a request that is no gRPC call: 405 if it is not a POST, 415 if its
/// content type is not `application/grpc` in any of its encodings.
pub(crate) fn reject_as_http<B>(request: &Request<B>) -> Option<Response<Body>> {
    let status = if request.method() != Method::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !is_grpc(request.headers()) {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    } else {
        return None;
    };
    let mut response = Response::new(Body::empty());
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

/// Collects the body of a unary call.
///
/// # Errors
///
/// INVALID_ARGUMENT if the body is longer than a message can be, CANCELLED if the caller reset the
/// stream.
pub(crate) async fn collect(body: &mut Incoming) -> Result<Bytes, Status> {
    let first = next_chunk(body).await?.unwrap_or_default();
    // Envoy ends the stream with the message itself. Other clients send an empty frame after it, which
    // has to arrive first: a response before the end of the request would reset the stream.
    if body.is_end_stream() {
        return Ok(first);
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
    Ok(only.unwrap_or_else(|| whole.freeze()))
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

/// Answers a unary call with the body `body`. `method` takes the encoded request and returns the
/// encoded response; it is not called if the body is not one message.
pub(crate) async fn respond<F, R>(body: Bytes, method: F) -> Response<Body>
where
    F: FnMut(Bytes) -> R,
    R: Future<Output = Result<tonic::Response<Vec<u8>>, Status>>,
{
    let compressed = body.first().is_some_and(|flag| *flag != 0);
    let mut called = false;
    // Without the caller's headers, so that a message is compressed if its flag says so. tonic would
    // reject any call with `grpc-encoding`, also if its message is not compressed.
    let request = Request::new(Full::new(body));
    let response = Grpc::new(BytesCodec)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .unary(UnaryMethod { method, called: &mut called }, request)
        .await;
    if called {
        return response;
    }
    let code = Status::from_header_map(response.headers()).map(|status| status.code());
    let status = match code {
        Some(Code::OutOfRange) => DecodeError::MessageTooLong.into(),
        _ if compressed => Status::unimplemented("compressed messages are not accepted"),
        _ => Status::invalid_argument("a unary call has exactly one whole message"),
    };
    status.into_http()
}

/// A method for tonic, which records that it was called.
struct UnaryMethod<'a, F> {
    method: F,
    called: &'a mut bool,
}

impl<F, R> UnaryService<Bytes> for UnaryMethod<'_, F>
where
    F: FnMut(Bytes) -> R,
    R: Future<Output = Result<tonic::Response<Vec<u8>>, Status>>,
{
    type Response = Vec<u8>;
    type Future = R;

    fn call(&mut self, request: tonic::Request<Bytes>) -> R {
        *self.called = true;
        (self.method)(request.into_inner())
    }
}

/// Passes messages on as bytes: `wire` decodes and encodes them, inside the time that is measured.
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = BytesEncoder;
    type Decoder = OneMessageDecoder;

    fn encoder(&mut self) -> BytesEncoder {
        BytesEncoder
    }

    fn decoder(&mut self) -> OneMessageDecoder {
        OneMessageDecoder { decoded: false }
    }
}

struct BytesEncoder;

impl Encoder for BytesEncoder {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.put_slice(&message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(ENCODE_BUFFER_BYTES, YIELD_THRESHOLD_BYTES)
    }
}

/// Fails at a second message, which tonic would ignore.
struct OneMessageDecoder {
    decoded: bool,
}

impl Decoder for OneMessageDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        if std::mem::replace(&mut self.decoded, true) {
            return Err(Status::invalid_argument("a unary call has one message"));
        }
        Ok(Some(src.copy_to_bytes(src.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(DECODE_BUFFER_BYTES, YIELD_THRESHOLD_BYTES)
    }
}

/// Returns how long the caller waits for an answer, from now; `None` if it did not say, or not in
/// the format of the protocol.
pub(crate) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(&GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows eight digits, which cannot overflow below.
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

    async fn status(body: &[u8]) -> Status {
        let method = |_| std::future::ready(Err(Status::data_loss("the method was called")));
        let response = respond(Bytes::copy_from_slice(body), method).await;
        Status::from_header_map(response.headers()).unwrap()
    }

    fn framed(flag: u8, length: u32, message: &[u8]) -> Vec<u8> {
        [&[flag][..], &length.to_be_bytes(), message].concat()
    }

    #[tokio::test]
    async fn a_body_that_is_not_one_message_gets_a_status_that_says_why() {
        let code = async |body: Vec<u8>| status(&body).await.code();
        assert_eq!(code(framed(0, 3, b"abc")).await, Code::DataLoss);
        assert_eq!(code(framed(0, 0, b"")).await, Code::DataLoss);
        assert_eq!(code(Vec::new()).await, Code::InvalidArgument);
        assert_eq!(code(framed(0, 4, b"abc")).await, Code::InvalidArgument);
        assert_eq!(code(framed(0, 2, b"abc")).await, Code::InvalidArgument);
        assert_eq!(code(framed(0, u32::MAX, b"abc")).await, Code::InvalidArgument);
        assert_eq!(
            code([framed(0, 1, b"a"), framed(0, 1, b"b")].concat()).await,
            Code::InvalidArgument
        );
        assert_eq!(code(framed(1, 3, b"abc")).await, Code::Unimplemented);
        assert_eq!(code(framed(2, 3, b"abc")).await, Code::Unimplemented);
        let status = status(&framed(0, 4_194_305, b"")).await;
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
            reject_as_http(&request).map(|response| response.status().as_u16())
        };
        assert_eq!(status(Method::POST, "application/grpc"), None);
        assert_eq!(status(Method::POST, "application/grpc+proto"), None);
        assert_eq!(status(Method::POST, "application/json"), Some(415));
        assert_eq!(status(Method::POST, "application/grpc-web"), Some(415));
        assert_eq!(status(Method::GET, "application/grpc"), Some(405));
    }
}
