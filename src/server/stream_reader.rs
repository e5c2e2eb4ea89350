//! Reads the messages of a client's stream, with limits on the size of each message and on the time
//! to receive it.
//!
//! A message within one HTTP/2 frame is not copied. A message that spans several frames is copied
//! as it arrives, is charged to the memory budgets of the connection and the process, and must be
//! complete before a timeout.
//!
//! Not here: unary calls (`receive`), deciding the requests (`limits_stream`).

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hyper::body::{Body as _, Incoming};
use tokio::time::{self, Sleep};
use tonic::Status;

use super::receive::{
    EARLY_RELEASE_BYTES_MAX, PREFIX_BYTES, ReceiveBounds, ReceivedBody, over_budget_status,
    parse_prefix, reserve_waiting_call,
};
use crate::domain::{BudgetedBuffer, ByteBudget};

/// Reader of the messages of one stream.
pub(super) struct StreamReader {
    body: Incoming,
    memory_budget: Arc<ByteBudget>,
    message_bytes_max: usize,
    timeout: Duration,
    /// Received bytes that have not been assigned to a message yet.
    unread_bytes: Bytes,
    incomplete_message: Option<IncompleteMessage>,
}

/// Message of which only a part has been received.
struct IncompleteMessage {
    buffer: BudgetedBuffer,
    /// Length of the prefix and the message, in bytes. While the prefix is incomplete, the length
    /// of the prefix alone.
    length: usize,
    deadline: Pin<Box<Sleep>>,
}

impl StreamReader {
    /// Creates a reader for the messages in `body`. A message must be complete within `timeout`
    /// after its first byte.
    pub(super) fn new(body: Incoming, bounds: ReceiveBounds<'_>, timeout: Duration) -> Self {
        let ReceiveBounds { message_bytes_max, memory_budget } = bounds;
        let memory_budget = Arc::clone(memory_budget);
        StreamReader {
            body,
            memory_budget,
            message_bytes_max,
            timeout,
            unread_bytes: Bytes::new(),
            incomplete_message: None,
        }
    }

    /// Returns the next message, or `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read_rest`](super::receive::read_rest), after which no further
    /// message can be read.
    pub(super) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<ReceivedBody>, Status>> {
        loop {
            if let Some(message) = self.take_message()? {
                return Poll::Ready(Ok(Some(message)));
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                if let Some(incomplete) = &mut self.incomplete_message {
                    ready!(incomplete.deadline.as_mut().poll(cx));
                    let late = "the request did not arrive in time";
                    return Poll::Ready(Err(Status::deadline_exceeded(late)));
                }
                return Poll::Pending;
            };
            match frame {
                Some(Ok(frame)) => self.unread_bytes = frame.into_data().unwrap_or_default(),
                Some(Err(_)) => {
                    return Poll::Ready(Err(Status::cancelled("the stream ended early")));
                }
                None if self.incomplete_message.is_some() => {
                    let incomplete = "the stream ended within a message";
                    return Poll::Ready(Err(Status::invalid_argument(incomplete)));
                }
                None => return Poll::Ready(Ok(None)),
            }
        }
    }

    /// Removes the next message from the received bytes and returns it; `None` if no complete
    /// message has been received. Returns an error if the message has an invalid prefix or exceeds
    /// the memory budget.
    fn take_message(&mut self) -> Result<Option<ReceivedBody>, Status> {
        let mut incomplete = match self.incomplete_message.take() {
            Some(incomplete) => incomplete,
            None if self.unread_bytes.is_empty() => return Ok(None),
            None => {
                let length = parse_prefix(&self.unread_bytes, self.message_bytes_max)?;
                if let Some(length) = length
                    && length <= self.unread_bytes.len()
                {
                    let bytes = self.unread_bytes.split_to(length).slice(PREFIX_BYTES..);
                    return Ok(Some(ReceivedBody { bytes, reservation: None }));
                }
                IncompleteMessage {
                    buffer: BudgetedBuffer::new(reserve_waiting_call(&self.memory_budget)?),
                    length: PREFIX_BYTES,
                    deadline: Box::pin(time::sleep(self.timeout)),
                }
            }
        };
        while incomplete.buffer.len() < incomplete.length && !self.unread_bytes.is_empty() {
            let missing = incomplete.length - incomplete.buffer.len();
            let part = self.unread_bytes.split_to(missing.min(self.unread_bytes.len()));
            if !incomplete.buffer.push(&part, incomplete.length) {
                return Err(over_budget_status());
            }
            if incomplete.buffer.len() == PREFIX_BYTES {
                let prefix: Vec<u8> = incomplete.buffer.bytes().copied().collect();
                let length = parse_prefix(&prefix, self.message_bytes_max)?;
                incomplete.length = length.unwrap_or(PREFIX_BYTES);
            }
        }
        if incomplete.buffer.len() < incomplete.length || incomplete.buffer.len() < PREFIX_BYTES {
            self.incomplete_message = Some(incomplete);
            return Ok(None);
        }
        let (bytes, reservation) = incomplete.buffer.into_parts();
        let mut bytes = Bytes::from(bytes);
        bytes.advance(PREFIX_BYTES);
        let long = bytes.len() > EARLY_RELEASE_BYTES_MAX;
        Ok(Some(ReceivedBody { bytes, reservation: Some(reservation).filter(|_| long) }))
    }
}
