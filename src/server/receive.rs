//! Receives the body of a unary call, with limits on its size, the time to receive it, and the
//! memory for incomplete requests.
//!
//! Envoy sends the body together with the headers. A body that has arrived completely when its
//! headers are processed needs no timer, no copy, and no memory accounting. Any other body is
//! copied as it arrives, because even a one-byte slice would keep h2's whole read buffer alive. The
//! copy is charged to the memory budgets of the connection and the process, and must be complete
//! before a timeout.
//!
//! Not here: framing (`framing`), the default limits (`server_limits`).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use smallvec::SmallVec;
use tokio::time;
use tonic::Status;

use super::framing;
use crate::domain::{BudgetedBuffer, ByteBudget, Reservation};

/// Length of the prefix of each gRPC message, in bytes: one for the compression flag, four for the
/// length.
const PREFIX_BYTES: usize = 5;

/// Compression flag of an uncompressed message.
const UNCOMPRESSED: u8 = 0;

/// Memory charged for a call with an incomplete body, in addition to the body itself, in bytes.
/// Covers the call's task, its h2 stream, and its buffers, which were measured to take 2.9 KB.
const WAITING_CALL_BYTES: usize = 3 * 1024;

/// Maximum length, in bytes, of a message whose memory reservation is released before its call is
/// decided. Longer messages keep their reservation, so that calls waiting for the store cannot
/// hold more memory than the budget.
const EARLY_RELEASE_BYTES_MAX: usize = 16 * 1024;

/// Limits on the size of a request and on the memory for incomplete requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveBounds<'a> {
    /// Maximum size of a message, in bytes.
    pub(crate) message_bytes_max: usize,
    /// Memory budget for incomplete requests on this connection.
    pub(crate) memory_budget: &'a Arc<ByteBudget>,
}

/// Complete body of a unary call, including the message prefix.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    pub(crate) bytes: Bytes,
    /// Memory reserved for a large body, held until the call has been decided; `None` if no memory
    /// is reserved.
    pub(crate) reservation: Option<Reservation>,
}

/// Body of a request after [`read_arrived`]: complete, or the part that has arrived so far.
#[derive(Debug)]
pub(crate) enum ArrivedBody {
    /// The complete body.
    Complete(ReceivedBody),
    /// The frames of the body that have arrived so far.
    Incomplete(Vec<Bytes>),
}

/// Reads the frames of a body that have already arrived, without waiting for more.
///
/// # Errors
///
/// Returns any error of [`read_rest`] except DEADLINE_EXCEEDED.
pub(crate) async fn read_arrived(
    body: &mut Incoming,
    bounds: ReceiveBounds<'_>,
) -> Result<ArrivedBody, Status> {
    let mut first = Bytes::new();
    let mut more = Vec::new();
    let complete = poll_fn(|cx| {
        loop {
            let chunk = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return Poll::Ready(Ok(false)),
                Poll::Ready(None) => return Poll::Ready(Ok(true)),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(ended_early_status())),
                Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            };
            if first.is_empty() {
                first = chunk;
            } else if !chunk.is_empty() {
                more.push(chunk);
            }
            // Envoy ends the stream with the frame of the message. Other clients end it with an empty
            // frame, which must be read first: a response before the end of the request would reset
            // the stream.
            if body.is_end_stream() {
                return Poll::Ready(Ok(true));
            }
        }
    })
    .await?;
    if complete && more.is_empty() {
        return Ok(ArrivedBody::Complete(ReceivedBody { bytes: first, reservation: None }));
    }
    if !first.is_empty() {
        more.insert(0, first);
    }
    if !complete {
        return Ok(ArrivedBody::Incomplete(more));
    }
    let mut buffer = ReceiveBuffer::new(bounds)?;
    for chunk in more {
        buffer.push(&chunk)?;
    }
    Ok(ArrivedBody::Complete(buffer.finish()))
}

/// Waits for the rest of a body. `arrived` contains the frames that were already read.
///
/// # Errors
///
/// Returns DEADLINE_EXCEEDED if the body is not complete within `timeout`, and CANCELLED if the
/// caller reset the stream. Returns RESOURCE_EXHAUSTED if incomplete requests exceed a memory
/// budget. Returns INVALID_ARGUMENT or UNIMPLEMENTED as soon as the received bytes rule out a
/// single uncompressed message within the size limit.
pub(crate) async fn read_rest(
    body: &mut Incoming,
    arrived: Vec<Bytes>,
    bounds: ReceiveBounds<'_>,
    timeout: Duration,
) -> Result<ReceivedBody, Status> {
    let mut buffer = ReceiveBuffer::new(bounds)?;
    for chunk in arrived {
        buffer.push(&chunk)?;
    }
    let rest = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ended_early_status())?;
            if let Ok(chunk) = frame.into_data() {
                buffer.push(&chunk)?;
            }
        }
        Ok(buffer.finish())
    };
    let late = |_| Status::deadline_exceeded("the request did not arrive in time");
    time::timeout(timeout, rest).await.map_err(late)?
}

fn ended_early_status() -> Status {
    Status::cancelled("the request ended early")
}

/// Buffer that collects the body of a request as it arrives.
#[derive(Debug)]
struct ReceiveBuffer {
    message_bytes_max: usize,
    body: BudgetedBuffer,
}

impl ReceiveBuffer {
    fn new(bounds: ReceiveBounds<'_>) -> Result<Self, Status> {
        let ReceiveBounds { message_bytes_max, memory_budget } = bounds;
        let reservation = memory_budget.reserve(WAITING_CALL_BYTES);
        let body = BudgetedBuffer::new(reservation.ok_or_else(over_budget_status)?);
        Ok(ReceiveBuffer { message_bytes_max, body })
    }

    /// Appends received bytes. Fails if they rule out a single uncompressed message within the size
    /// limit, or if the body exceeds the memory budget.
    fn push(&mut self, chunk: &[u8]) -> Result<(), Status> {
        let prefix: SmallVec<[u8; PREFIX_BYTES]> =
            self.body.bytes().chain(chunk).take(PREFIX_BYTES).copied().collect();
        let length_max = parse_prefix(&prefix, self.message_bytes_max)?.unwrap_or(PREFIX_BYTES);
        if self.body.len() + chunk.len() > length_max {
            return Err(framing::message_count_status());
        }
        if self.body.push(chunk, length_max) { Ok(()) } else { Err(over_budget_status()) }
    }

    fn finish(self) -> ReceivedBody {
        let (bytes, reservation) = self.body.into_parts();
        let long = bytes.len() > EARLY_RELEASE_BYTES_MAX;
        ReceivedBody { bytes: bytes.into(), reservation: Some(reservation).filter(|_| long) }
    }
}

/// Returns the total length of the prefix and its message, in bytes; `None` if the prefix is
/// incomplete.
///
/// # Errors
///
/// Returns UNIMPLEMENTED if the message is compressed, and INVALID_ARGUMENT if it is too long.
fn parse_prefix(bytes: &[u8], message_bytes_max: usize) -> Result<Option<usize>, Status> {
    if bytes.first().is_some_and(|flag| *flag != UNCOMPRESSED) {
        return Err(framing::compressed_message_status());
    }
    let length = bytes.get(1..PREFIX_BYTES).and_then(|length| length.try_into().ok());
    let Some(length) = length.map(u32::from_be_bytes) else { return Ok(None) };
    match usize::try_from(length) {
        Ok(length) if length <= message_bytes_max => Ok(Some(PREFIX_BYTES + length)),
        Ok(_) | Err(_) => Err(framing::message_too_long_status(message_bytes_max)),
    }
}

fn over_budget_status() -> Status {
    Status::resource_exhausted("too many incomplete requests")
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn frame_message(flag: u8, length: u32, message: &[u8]) -> Vec<u8> {
        [&[flag][..], &length.to_be_bytes(), message].concat()
    }

    /// Receives a body in chunks of `size` bytes. Returns the received bytes, or the status code of
    /// the error.
    fn receive_in_chunks(
        body: &[u8],
        size: usize,
        memory_budget: &Arc<ByteBudget>,
    ) -> Result<Bytes, Code> {
        let mut buffer =
            ReceiveBuffer::new(ReceiveBounds { message_bytes_max: 50_000, memory_budget })
                .map_err(|status| status.code())?;
        for chunk in body.chunks(size) {
            buffer.push(chunk).map_err(|status| status.code())?;
        }
        Ok(buffer.finish().bytes)
    }

    #[test]
    fn a_body_in_chunks_of_any_size_is_received_and_charged_as_it_grows() {
        let message = vec![7; 50_000];
        let body = frame_message(0, 50_000, &message);
        for size in [1, 4, 5, 6, 1_000, 16_384, 100_000] {
            let memory_budget = Arc::new(ByteBudget::new(WAITING_CALL_BYTES + 2 * body.len()));
            assert_eq!(receive_in_chunks(&body, size, &memory_budget).unwrap(), body);
            assert_eq!(memory_budget.reserved(), 0, "nothing is reserved after the call");
            let small = Arc::new(ByteBudget::new(WAITING_CALL_BYTES + body.len()));
            assert_eq!(receive_in_chunks(&body, size, &small), Err(Code::ResourceExhausted));
        }
    }

    #[test]
    fn a_body_that_cannot_be_one_message_is_rejected_at_its_prefix() {
        let memory_budget = Arc::new(ByteBudget::new(WAITING_CALL_BYTES + 100));
        for size in [1, 5, 100] {
            let code = |body: Vec<u8>| receive_in_chunks(&body, size, &memory_budget).unwrap_err();
            assert_eq!(code(frame_message(0, 50_001, b"")), Code::InvalidArgument);
            assert_eq!(code(frame_message(0, u32::MAX, b"")), Code::InvalidArgument);
            assert_eq!(code(frame_message(1, 3, b"")), Code::Unimplemented);
            assert_eq!(code(frame_message(0, 2, b"abc")), Code::InvalidArgument);
        }
        assert_eq!(memory_budget.reserved(), 0);
    }

    #[test]
    fn only_a_long_message_keeps_its_memory_reservation() {
        let memory_budget = Arc::new(ByteBudget::new(1 << 20));
        let held = |length: usize| {
            let mut buffer = ReceiveBuffer::new(ReceiveBounds {
                message_bytes_max: 50_000,
                memory_budget: &memory_budget,
            })
            .unwrap();
            let prefix = frame_message(0, u32::try_from(length).unwrap(), &vec![7; length]);
            buffer.push(&prefix).unwrap();
            let body = buffer.finish();
            let reserved = memory_budget.reserved();
            drop(body);
            reserved
        };
        assert_eq!(held(1_000), 0);
        assert!(held(50_000) > 50_000);
        assert_eq!(memory_budget.reserved(), 0);
    }
}
