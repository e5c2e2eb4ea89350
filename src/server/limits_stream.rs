//! `tidegate.v1.Limits/Stream`: decides the requests of a stream as they arrive.
//!
//! Each request is processed like a single call. The stream applies backpressure: it reads no
//! further requests while [`IN_FLIGHT_MAX`] requests are being decided, or while the client does
//! not read its responses. The HTTP/2 flow-control window then stops the client. When the
//! connection shuts down, the stream decides the requests that it has read and ends with
//! UNAVAILABLE.
//!
//! Not here: reading messages (`stream_reader`), batches (`limits_service`).

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, FuturesUnordered};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tonic::Status;
use tonic::body::Body;

use super::authz::Caller;
use super::connection_registry::Activity;
use super::framing;
use super::receive::{ReceiveBounds, ReceivedBody};
use super::rls_service::{Decide, RlsService};
use super::stream_reader::StreamReader;
use crate::domain::ByteBudget;
use crate::wire::limits_messages;

/// HTTP path of the `Stream` method of `tidegate.v1.Limits`.
pub(crate) const STREAM_PATH: &str = "/tidegate.v1.Limits/Stream";

/// Maximum number of requests of a stream that are decided concurrently. Enough for 250,000
/// requests per second at a Redis round-trip time of 1 ms. Each waiting request takes about 13 KB.
pub(crate) const IN_FLIGHT_MAX: usize = 256;

/// Maximum number of open streams per connection. A client needs only one. Together with
/// [`IN_FLIGHT_MAX`], this keeps the memory for a connection's requests below 64 MB.
pub(crate) const STREAMS_MAX: usize = 16;

/// Total size, in bytes, at which collected responses are sent. Equal to the default maximum
/// payload of an HTTP/2 frame.
const RESPONSE_CHUNK_BYTES: usize = 16 * 1024;

/// Initial state of a stream: its request body, its caller, and its limits.
pub(super) struct StreamInput<D> {
    pub(super) rls_service: Arc<RlsService<D>>,
    pub(super) body: Incoming,
    pub(super) caller: Caller,
    pub(super) activity: Arc<Activity>,
    /// Memory budget for incomplete requests on the connection.
    pub(super) memory_budget: Arc<ByteBudget>,
    /// Maximum time for a request to arrive, from its first byte to its last.
    pub(super) receive_timeout: Duration,
    /// Permit that counts the stream towards the maximum number of streams on the connection.
    pub(super) permit: OwnedSemaphorePermit,
    /// Becomes true when the connection shuts down.
    pub(super) closing: watch::Receiver<bool>,
}

/// Returns the HTTP response for a stream. The requests of the stream are decided as the response
/// body is polled.
pub(super) fn respond<D: Decide>(input: StreamInput<D>) -> Response<Body> {
    let answers = stream::unfold(Some(ResponseStream::new(input)), |state| async {
        let mut state = state?;
        let chunk = std::future::poll_fn(|cx| state.poll_response_frame(cx)).await;
        Some(match chunk {
            ResponseFrame::Responses(bytes) => {
                (Ok::<_, Infallible>(Frame::data(bytes)), Some(state))
            }
            ResponseFrame::Trailers(status) => {
                let mut trailers = HeaderMap::new();
                // The statuses have no metadata, so that this cannot fail.
                let _ = status.add_header(&mut trailers);
                (Ok(Frame::trailers(trailers)), None)
            }
        })
    });
    let mut response = Response::new(Body::new(StreamBody::new(answers)));
    response.headers_mut().insert(CONTENT_TYPE, framing::GRPC_CONTENT_TYPE);
    response
}

/// One frame of a stream's response body.
enum ResponseFrame {
    Responses(Bytes),
    /// Trailers with the final status of the stream.
    Trailers(Status),
}

/// State of a stream that decides requests and collects their responses.
struct ResponseStream<D> {
    rls_service: Arc<RlsService<D>>,
    caller: Caller,
    activity: Arc<Activity>,
    reader: StreamReader,
    in_flight: FuturesUnordered<BoxFuture<'static, Vec<u8>>>,
    closing: BoxFuture<'static, ()>,
    _permit: OwnedSemaphorePermit,
    /// Final status of the stream; `None` while further requests are read.
    final_status: Option<Status>,
}

impl<D: Decide> ResponseStream<D> {
    fn new(input: StreamInput<D>) -> Self {
        let StreamInput { rls_service, body, caller, activity, memory_budget, .. } = input;
        let (receive_timeout, permit, mut closing) =
            (input.receive_timeout, input.permit, input.closing);
        let message_bytes_max = rls_service.message_bytes_max();
        let bounds = ReceiveBounds { message_bytes_max, memory_budget: &memory_budget };
        ResponseStream {
            reader: StreamReader::new(body, bounds, receive_timeout),
            rls_service,
            caller,
            activity,
            in_flight: FuturesUnordered::new(),
            closing: Box::pin(async move {
                // An error means that the connection is gone, which is the same.
                let _ = closing.wait_for(|closing| *closing).await;
            }),
            _permit: permit,
            final_status: None,
        }
    }

    fn poll_response_frame(&mut self, cx: &mut Context<'_>) -> Poll<ResponseFrame> {
        if self.final_status.is_none() && self.closing.as_mut().poll(cx).is_ready() {
            let closing = "the server closes the connection; requests without an answer were not \
                           decided";
            self.final_status = Some(Status::unavailable(closing));
        }
        let mut answers = BytesMut::new();
        loop {
            self.read_requests(cx);
            let mut answered = false;
            while answers.len() < RESPONSE_CHUNK_BYTES
                && let Poll::Ready(Some(answer)) = self.in_flight.poll_next_unpin(cx)
            {
                framing::put_message(&answer, &mut answers);
                answered = true;
            }
            if answers.len() >= RESPONSE_CHUNK_BYTES || (!answered && !answers.is_empty()) {
                return Poll::Ready(ResponseFrame::Responses(answers.freeze()));
            }
            if answered {
                continue;
            }
            return match self.final_status.take_if(|_| self.in_flight.is_empty()) {
                Some(status) => Poll::Ready(ResponseFrame::Trailers(status)),
                None => Poll::Pending,
            };
        }
    }

    /// Reads the requests that have arrived and starts to decide them.
    fn read_requests(&mut self, cx: &mut Context<'_>) {
        while self.final_status.is_none() && self.in_flight.len() < IN_FLIGHT_MAX {
            let started = match self.reader.poll_message(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(Some(message))) => self.start_decision(message),
                Poll::Ready(Ok(None)) => Err(Status::ok("")),
                Poll::Ready(Err(status)) => Err(status),
            };
            self.final_status = started.err();
        }
    }

    fn start_decision(&mut self, message: ReceivedBody) -> Result<(), Status> {
        self.activity.record_call();
        let ReceivedBody { bytes, reservation } = message;
        let decoded = limits_messages::decode_stream_request(bytes);
        let (id, request) = decoded.map_err(|error| self.rls_service.reject_invalid(error))?;
        let (rls_service, caller) = (Arc::clone(&self.rls_service), self.caller.clone());
        self.in_flight.push(Box::pin(async move {
            let _held = reservation;
            let result = rls_service.answer(request, None, &caller, None).await;
            limits_messages::encode_stream_response(id, result.as_deref().map_err(Status::clone))
        }));
        Ok(())
    }
}
