//! State machine of a circuit breaker. While the breaker of a node is open, no call is sent to the
//! node, so no caller waits for a node that does not respond.
//!
//! The breaker opens if
//!
//! - connecting failed [`CONNECT_FAILURES_MAX`] times in a row and no connection is open;
//! - a command is 50 ms old ([`SILENCE_MAX`](super::config::SILENCE_MAX)) and nothing has arrived
//!   from the node since (`connection` decides that);
//! - the node has sent at least [`REPLIES_MIN`] replies within [`ERROR_WINDOW`], and at least half
//!   of them are errors saying that the node cannot serve.
//!
//! A late reply does not open the breaker. One timely reply to a PING closes the breaker, so there
//! is no half-open state in which calls are rejected.
//!
//! Not here: locks (`node_state`), sending PINGs (`connection`).

use std::time::Duration;

use crate::domain::Micros;

/// Number of consecutive failed connection attempts after which the breaker opens if no connection
/// is open.
const CONNECT_FAILURES_MAX: u32 = 2;
/// Minimum number of replies within [`ERROR_WINDOW`] before error replies can open the breaker.
const REPLIES_MIN: u64 = 20;
/// Length of the window over which replies and error replies are counted.
const ERROR_WINDOW: Micros = Micros::SECOND;
/// Interval between PINGs on each connection while the breaker is open.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum round-trip time of a PING that closes the breaker. Equals Envoy's default timeout,
/// because a slower node would reply to calls too late.
pub(crate) const PROBE_TIMEOUT: Micros = Micros(20_000);

/// Conditions for opening a node's circuit breaker, while it is closed. The caller provides the time
/// and the locking.
#[derive(Clone, Debug, Default)]
pub(crate) struct CircuitBreaker {
    connect_failures: u32,
    window_start: Micros,
    /// Number of replies that the node had sent before the window started.
    replies_before: u64,
    /// Number of error replies since the window started. Counts only errors that say that the node
    /// cannot serve calls.
    errors: u64,
}

impl CircuitBreaker {
    /// Records a failed connection attempt while no connection is open. Returns whether the
    /// breaker must open.
    pub(crate) fn record_connect_failure(&mut self) -> bool {
        self.connect_failures = self.connect_failures.saturating_add(1);
        self.connect_failures >= CONNECT_FAILURES_MAX
    }

    /// Resets the count of consecutive connection failures, because a connection was opened.
    pub(crate) fn record_connected(&mut self) {
        self.connect_failures = 0;
    }

    /// Records a batch of replies that contains errors. `replies` is the number of replies in the
    /// batch. `errors` is the number of those replies that say that the node cannot serve calls.
    /// `replies_total` is the number of replies from the node so far, including this batch. Returns
    /// whether the breaker must open.
    pub(crate) fn record_errors(
        &mut self,
        errors: u64,
        replies: u64,
        replies_total: u64,
        now: Micros,
    ) -> bool {
        if self.errors == 0 || now.saturating_sub(self.window_start) >= ERROR_WINDOW {
            self.window_start = now;
            self.replies_before = replies_total.saturating_sub(replies);
            self.errors = 0;
        }
        self.errors += errors;
        let replies = replies_total.saturating_sub(self.replies_before);
        replies >= REPLIES_MIN && self.errors * 2 >= replies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_000_000_000);

    #[test]
    fn two_connection_failures_in_a_row_open_the_breaker() {
        let mut breaker = CircuitBreaker::default();
        assert!(!breaker.record_connect_failure());
        breaker.record_connected();
        assert!(!breaker.record_connect_failure());
        assert!(breaker.record_connect_failure());
    }

    #[test]
    fn errors_in_half_of_twenty_replies_within_a_second_open_the_breaker() {
        let mut breaker = CircuitBreaker::default();
        let mut total = 1_000_000;
        let mut reply = |errors, replies, now| {
            total += replies;
            breaker.record_errors(errors, replies, total, now)
        };
        assert!(!reply(9, 19, NOW), "nineteen replies are too few");
        assert!(reply(1, 1, NOW.saturating_add(Micros(999_999))));
        // A window later, the same errors no longer count.
        let later = NOW.saturating_add(Micros::SECOND);
        assert!(!reply(19, 19, later));
        assert!(!reply(1, 21, later.saturating_add(Micros::SECOND)));
        assert!(!reply(9, 10, later.saturating_add(Micros::SECOND)), "10 of 31");
        assert!(reply(6, 1, later.saturating_add(Micros::SECOND)), "16 of 32");
    }
}
