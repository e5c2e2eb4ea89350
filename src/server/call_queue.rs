//! Queue of a worker: calls that have been accepted and not started yet. Under overload, it decides
//! which of them are still worth an answer.
//!
//! When more calls arrive than a worker can answer, their callers give up: Envoy resets a call after
//! 20 ms, and makes the next one. A worker that answered in the order of arrival would soon answer
//! only calls whose callers have left. Therefore, a call that finds a queue is looked at twice.
//! First, it is dropped if its caller has reset it. Then, after the first look at the calls behind
//! it, it is rejected if it has waited for half of its deadline. As in CoDel, the time in the queue
//! counts and not the length of the queue, so that a burst of calls is answered.
//!
//! Not here: the time that a call waits in the socket, which only the kernel knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task;
use tonic::Status;

use crate::clock::Clock;

/// Number of waiting calls of a worker that do not count as a queue: less than 1 ms of work. A call
/// that finds no more than these is started without reading the clock.
const SHORT_QUEUE_MAX: usize = 32;

/// Number of calls of a worker that wait to be started.
pub(crate) type CallQueue = AtomicUsize;

/// Call in a [`CallQueue`]. Dropping it removes it from the queue.
#[derive(Debug)]
pub(crate) struct QueuedCall {
    queue: Arc<CallQueue>,
    /// Time at which the call was accepted; `None` if it found a short queue.
    accepted: Option<Instant>,
}

impl QueuedCall {
    /// Adds an accepted call to the queue.
    pub(crate) fn new(queue: &Arc<CallQueue>, clock: &Clock) -> Self {
        let ahead = queue.fetch_add(1, Ordering::Relaxed);
        let accepted = (ahead >= SHORT_QUEUE_MAX).then(|| clock.monotonic_now());
        QueuedCall { queue: Arc::clone(queue), accepted }
    }

    /// Starts a call. Returns the time left until its deadline. If the caller has reset the call,
    /// hyper drops it at the only await.
    ///
    /// # Errors
    ///
    /// Returns RESOURCE_EXHAUSTED if the call has waited for more than half of its deadline.
    pub(crate) async fn start(
        self,
        deadline: Option<Duration>,
        clock: &Clock,
    ) -> Result<Option<Duration>, Status> {
        let Some(accepted) = self.accepted else { return Ok(deadline) };
        task::yield_now().await;
        let waited = clock.monotonic_now().saturating_duration_since(accepted);
        // A caller without a deadline still waits, or it would have reset the call.
        if deadline.is_some_and(|deadline| waited > deadline / 2) {
            return Err(Status::resource_exhausted(
                "overloaded: the call waited for more than half of its deadline; add CPUs or replicas",
            ));
        }
        Ok(deadline.map(|deadline| deadline.saturating_sub(waited)))
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        self.queue.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tonic::Code;

    use super::*;
    use crate::clock::ManualClock;
    use crate::domain::Micros;

    /// Starts a call that found `ahead` calls and has waited for this many milliseconds. Returns how
    /// often it was pending, and its result.
    fn start(
        ahead: usize,
        waited_ms: u64,
        deadline_ms: Option<u64>,
    ) -> (usize, Result<Option<Duration>, Code>) {
        let manual = ManualClock::default();
        let clock = Clock::Manual(manual.clone());
        let queue = Arc::new(CallQueue::default());
        let before: Vec<_> = (0..ahead).map(|_| QueuedCall::new(&queue, &clock)).collect();
        let call = QueuedCall::new(&queue, &clock);
        drop(before);
        assert_eq!(queue.load(Ordering::Relaxed), 1);
        manual.advance(Micros(1_000 * waited_ms));
        let result = {
            let mut call = pin!(call.start(deadline_ms.map(Duration::from_millis), &clock));
            let mut context = Context::from_waker(Waker::noop());
            let mut pending = 0;
            loop {
                match call.as_mut().poll(&mut context) {
                    Poll::Pending => pending += 1,
                    Poll::Ready(result) => break (pending, result.map_err(|error| error.code())),
                }
            }
        };
        assert_eq!(queue.load(Ordering::Relaxed), 0);
        result
    }

    #[test]
    fn a_call_that_finds_a_short_queue_starts_at_once() {
        assert_eq!(start(31, 1_000, None), (0, Ok(None)));
        assert_eq!(start(31, 1_000, Some(1)), (0, Ok(Some(Duration::from_millis(1)))));
    }

    #[test]
    fn a_call_that_has_waited_for_half_of_its_deadline_is_rejected_after_a_second_look() {
        let seconds =
            |waited: u64, deadline: u64| start(32, 1_000 * waited, Some(1_000 * deadline));
        let (pending, left) = seconds(400, 1_000);
        assert_eq!(pending, 1);
        // The manual clock goes on with the real one.
        assert!(left.unwrap().is_some_and(|left| left <= Duration::from_secs(600)));
        assert_eq!(seconds(501, 1_000), (1, Err(Code::ResourceExhausted)));
        assert_eq!(start(32, 1_000_000, None), (1, Ok(None)), "without a deadline");
    }
}
