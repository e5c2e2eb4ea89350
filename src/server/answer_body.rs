//! Body of an answer, which holds its memory until the last byte is written to the socket.
//!
//! hyper takes a chunk from the body before the client's flow-control window has room for it, and h2
//! keeps what the window or the socket does not take. Each chunk therefore carries its own [`Hold`].
//!
//! Not here: the budget (`domain::held_memory`), calls that lose their memory (`call_tasks`).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::server_bounds::WAITING_CALL_BYTES;
use crate::domain::Hold;

/// Body of an answer, and the memory that its call holds.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    body: Body,
    /// `None` once the only chunk of a unary answer has taken it.
    hold: Option<Hold>,
    is_stream: bool,
}

impl AnswerBody {
    /// Creates the body of a unary answer, which has at most one chunk.
    pub(crate) fn unary(body: Body, hold: Hold) -> Self {
        AnswerBody { body, hold: Some(hold), is_stream: false }
    }

    /// Creates the body of a stream of messages. The stream keeps `hold` until it ends.
    pub(crate) fn stream(body: Body, hold: Hold) -> Self {
        AnswerBody { body, hold: Some(hold), is_stream: true }
    }

    fn hold_chunk(&mut self, bytes: Bytes) -> AnswerChunk {
        let hold = match &self.hold {
            Some(hold) if self.is_stream => Some(Hold::new(hold.caller(), bytes.len())),
            _ => self.hold.take().map(|mut hold| {
                hold.resize(WAITING_CALL_BYTES + bytes.len());
                hold
            }),
        };
        let mut chunk = AnswerChunk { bytes, hold };
        chunk.record_sending();
        chunk
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = AnswerChunk;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerChunk>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(|bytes| self.hold_chunk(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Part of an answer that has not been written to the socket completely.
#[derive(Debug)]
pub(crate) struct AnswerChunk {
    bytes: Bytes,
    hold: Option<Hold>,
}

impl AnswerChunk {
    fn record_sending(&mut self) {
        if let Some(hold) = &mut self.hold {
            hold.record_sending();
        }
    }
}

impl Buf for AnswerChunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.record_sending();
    }
}
