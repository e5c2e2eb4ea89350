//! Receives the body of a unary call, with limits on its size, the time to receive it, and the
//! memory for incomplete requests.
//!
//! Envoy sends the body together with the headers. A body that has arrived completely when its
//! headers are processed needs no timer, no copy, and no memory accounting. Any other body is
//! copied as it arrives, because even a one-byte slice would keep h2's whole read buffer alive. The
//! copy counts as memory held for the connection, and must be complete before a timeout.
//!
//! Not here: framing (`framing`), the default limits (`server_limits`).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use smallvec::SmallVec;
use tokio::time;
use tonic::Status;

use super::framing;
use crate::domain::{HeldBuffer, Hold};

/// Length of the prefix of each gRPC message, in bytes: one for the compression flag, four for the
/// length.
const PREFIX_BYTES: usize = 5;

/// Compression flag of an uncompressed message.
const UNCOMPRESSED: u8 = 0;

/// Maximum length, in bytes, of a message that does not count separately while its call is decided.
const SHORT_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Complete body of a unary call, including the message prefix.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    pub(crate) bytes: Bytes,
    /// Number of bytes to hold for a long body until the call has been decided.
    pub(crate) held_bytes: usize,
}

/// Frames of a body, of which Envoy sends one.
pub(crate) type BodyFrames = SmallVec<[Bytes; 1]>;

/// Body of a request after [`read_arrived`]: complete, or the part that has arrived so far.
#[derive(Debug)]
pub(crate) enum ArrivedBody {
    Complete(ReceivedBody),
    Incomplete(BodyFrames),
}

/// Reads the frames of a body that have already arrived, without waiting for more.
///
/// # Errors
///
/// Returns any error of [`read_rest`] except DEADLINE_EXCEEDED.
pub(crate) async fn read_arrived(
    body: &mut Incoming,
    message_bytes_max: usize,
    hold: &mut Hold,
) -> Result<ArrivedBody, Status> {
    let mut frames = BodyFrames::new();
    let complete = poll_fn(|cx| {
        loop {
            let chunk = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return Poll::Ready(Ok(false)),
                Poll::Ready(None) => return Poll::Ready(Ok(true)),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(ended_early_status())),
                Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            };
            if !chunk.is_empty() {
                frames.push(chunk);
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
    if !complete {
        return Ok(ArrivedBody::Incomplete(frames));
    }
    if frames.len() <= 1 {
        let bytes = frames.pop().unwrap_or_default();
        return Ok(ArrivedBody::Complete(ReceivedBody { bytes, held_bytes: 0 }));
    }
    let mut buffer = ReceiveBuffer::new(message_bytes_max, hold);
    for chunk in frames {
        buffer.push(&chunk)?;
    }
    Ok(ArrivedBody::Complete(buffer.finish()))
}

/// Waits for the rest of a body. `arrived` contains the frames that were already read.
///
/// # Errors
///
/// Returns DEADLINE_EXCEEDED if the body is not complete within `timeout`, and CANCELLED if the
/// caller reset the stream. Returns INVALID_ARGUMENT or UNIMPLEMENTED as soon as the received bytes
/// rule out a single uncompressed message within the size limit.
pub(crate) async fn read_rest(
    body: &mut Incoming,
    arrived: BodyFrames,
    message_bytes_max: usize,
    hold: &mut Hold,
    timeout: Duration,
) -> Result<ReceivedBody, Status> {
    let mut buffer = ReceiveBuffer::new(message_bytes_max, hold);
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
struct ReceiveBuffer<'a> {
    message_bytes_max: usize,
    body: HeldBuffer<'a>,
}

impl<'a> ReceiveBuffer<'a> {
    fn new(message_bytes_max: usize, hold: &'a mut Hold) -> Self {
        ReceiveBuffer { message_bytes_max, body: HeldBuffer::new(hold) }
    }

    /// Appends received bytes. Fails if they rule out a single uncompressed message within the size
    /// limit.
    fn push(&mut self, chunk: &[u8]) -> Result<(), Status> {
        let prefix: SmallVec<[u8; PREFIX_BYTES]> =
            self.body.bytes().chain(chunk).take(PREFIX_BYTES).copied().collect();
        let length_max = parse_prefix(&prefix, self.message_bytes_max)?.unwrap_or(PREFIX_BYTES);
        if self.body.len() + chunk.len() > length_max {
            return Err(framing::message_count_status());
        }
        self.body.push(chunk, length_max);
        Ok(())
    }

    fn finish(self) -> ReceivedBody {
        let bytes = Bytes::from(self.body.into_bytes());
        let held_bytes = if bytes.len() > SHORT_MESSAGE_BYTES_MAX { bytes.len() } else { 0 };
        ReceivedBody { bytes, held_bytes }
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

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::domain::HeldMemory;

    fn frame_message(flag: u8, length: u32, message: &[u8]) -> Vec<u8> {
        [&[flag][..], &length.to_be_bytes(), message].concat()
    }

    /// Receives a body in chunks of `size` bytes. Returns the received bytes and how many were held,
    /// or the status code of the error.
    fn receive_in_chunks(body: &[u8], size: usize) -> Result<(Bytes, usize), Code> {
        let caller = HeldMemory::new(1 << 20, 1 << 20).add_caller();
        let mut hold = Hold::new(&caller, 0);
        let mut buffer = ReceiveBuffer::new(50_000, &mut hold);
        for chunk in body.chunks(size) {
            buffer.push(chunk).map_err(|status| status.code())?;
        }
        Ok((buffer.finish().bytes, caller.held_bytes()))
    }

    #[test]
    fn a_body_in_chunks_of_any_size_is_received_and_held() {
        let body = frame_message(0, 50_000, &vec![7; 50_000]);
        for size in [1, 4, 5, 6, 1_000, 16_384, 100_000] {
            let (bytes, held) = receive_in_chunks(&body, size).unwrap();
            assert_eq!(bytes, body);
            assert!((body.len()..2 * body.len()).contains(&held), "{size}: {held}");
        }
    }

    #[test]
    fn a_body_that_cannot_be_one_message_is_rejected_at_its_prefix() {
        for size in [1, 5, 100] {
            let code = |body: Vec<u8>| receive_in_chunks(&body, size).unwrap_err();
            assert_eq!(code(frame_message(0, 50_001, b"")), Code::InvalidArgument);
            assert_eq!(code(frame_message(0, u32::MAX, b"")), Code::InvalidArgument);
            assert_eq!(code(frame_message(1, 3, b"")), Code::Unimplemented);
            assert_eq!(code(frame_message(0, 2, b"abc")), Code::InvalidArgument);
        }
    }

    #[test]
    fn only_a_long_message_counts_while_its_call_is_decided() {
        let caller = HeldMemory::new(1 << 20, 1 << 20).add_caller();
        let held = |length: usize| {
            let mut hold = Hold::new(&caller, 0);
            let mut buffer = ReceiveBuffer::new(50_000, &mut hold);
            let message = frame_message(0, u32::try_from(length).unwrap(), &vec![7; length]);
            buffer.push(&message).unwrap();
            buffer.finish().held_bytes
        };
        assert_eq!((held(1_000), held(50_000)), (0, 50_005));
    }
}
