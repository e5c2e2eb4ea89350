//! Circuit breaker of one node, shared by its callers and its connections.
//!
//! Callers read one atomic and take no lock. Connections report failed connection attempts, missing
//! replies, error replies, and replies to PING. Not here: the conditions for opening
//! (`circuit_breaker`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use super::circuit_breaker::CircuitBreaker;
use super::config::MonotonicClock;
use super::dialer::ConnectionSignal;
use super::node_stats::NodeStats;
use super::reply_slot::CommandReply;
use super::send_error::SendError;
use crate::domain::{FailureKind, Lock, LogLimiter, Micros};
use crate::store::current_trace;

/// Circuit breaker of one node, with its clock and the node's statistics.
pub(crate) struct NodeBreaker {
    pub(crate) clock: MonotonicClock,
    breaker: Lock<LoggedBreaker>,
    is_open: AtomicBool,
    /// Number of replies received from the node so far, on all connections.
    replies: AtomicU64,
    /// Time of the latest reply on any connection, in microseconds of `clock`.
    last_reply_at: AtomicU64,
    address: String,
    stats: Arc<NodeStats>,
    /// Limiter of the log lines about the breaker opening, so that a node that replies to PING but
    /// cannot serve does not fill the log.
    log_limiter: LogLimiter,
    refresh_needed: Arc<Notify>,
    /// Signals that wake the node's connections when the breaker opens.
    signals: Vec<Arc<ConnectionSignal>>,
}

/// Circuit breaker, with the state that rate-limits its log lines.
#[derive(Debug, Default)]
struct LoggedBreaker {
    breaker: CircuitBreaker,
    opened_at: Micros,
    /// Whether the latest opening was logged. If not, the next closing is not logged either.
    is_logged: bool,
}

impl std::fmt::Debug for NodeBreaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBreaker").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Timer of one call, which records the call's wait in the node's statistics and in the call's
/// trace. If dropped before [`report`](Self::report), the timer records the wait so far, with the
/// error `timeout` in the trace.
#[derive(Debug)]
pub(crate) struct CallTracker {
    breaker: Arc<NodeBreaker>,
    sent: Micros,
    reported: bool,
}

impl NodeBreaker {
    pub(crate) fn new(
        clock: MonotonicClock,
        address: String,
        stats: Arc<NodeStats>,
        refresh_needed: Arc<Notify>,
        signals: Vec<Arc<ConnectionSignal>>,
    ) -> NodeBreaker {
        let log_clock = clock.clone();
        NodeBreaker {
            clock,
            breaker: Lock::default(),
            is_open: AtomicBool::new(false),
            replies: AtomicU64::new(0),
            last_reply_at: AtomicU64::new(0),
            address,
            stats,
            log_limiter: LogLimiter::new(1, move || log_clock.instant()),
            refresh_needed,
            signals,
        }
    }

    /// Returns whether the breaker is open, so that no call may be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Creates the timer of a call that was queued at `sent`.
    pub(crate) fn track(self: &Arc<Self>, sent: Micros) -> CallTracker {
        CallTracker { breaker: Arc::clone(self), sent, reported: false }
    }

    /// Returns the time of the node's latest reply on any connection.
    pub(crate) fn last_reply_at(&self) -> Micros {
        Micros(self.last_reply_at.load(Ordering::Relaxed))
    }

    /// Records a batch of replies. `replies` is the number of replies, and `errors` is the number
    /// of those that are errors from a node that cannot serve calls. Opens the breaker if there are
    /// too many errors.
    pub(crate) fn record_replies(&self, replies: usize, errors: u64, now: Micros) {
        let replies = replies as u64;
        let total = self.replies.fetch_add(replies, Ordering::Relaxed) + replies;
        self.last_reply_at.fetch_max(now.0, Ordering::Relaxed);
        if errors > 0 {
            let mut breaker = self.breaker.lock();
            if breaker.breaker.record_errors(errors, replies, total, now) {
                self.open(&mut breaker, "error_replies");
            }
        }
    }

    /// Records that a connection could not be opened, which may open the breaker. Does nothing if
    /// another connection is open.
    pub(crate) fn record_connect_failure(&self) {
        if self.stats.connected.get() > 0 {
            return;
        }
        let mut breaker = self.breaker.lock();
        if breaker.breaker.record_connect_failure() {
            self.open(&mut breaker, "connect_failures");
        }
    }

    pub(crate) fn record_connected(&self) {
        self.breaker.lock().breaker.record_connected();
    }

    /// Opens the breaker because the node sent nothing while a command was waiting for its reply.
    pub(crate) fn record_silence(&self) {
        self.open(&mut self.breaker.lock(), "silence");
    }

    /// Closes the breaker after the node has replied to a PING in time.
    pub(crate) fn close(&self) {
        let mut breaker = self.breaker.lock();
        if self.is_open.swap(false, Ordering::AcqRel) {
            breaker.breaker = CircuitBreaker::default();
            self.stats.breaker_open.sub(1);
            if breaker.is_logged {
                let open_ms = self.clock.now().saturating_sub(breaker.opened_at).ceil_millis();
                tracing::info!(node = self.address, open_ms, "the circuit breaker closed");
            }
        }
    }

    /// Opens the breaker and wakes every connection, which then rejects its queued commands.
    fn open(&self, breaker: &mut LoggedBreaker, reason: &'static str) {
        if self.is_open.swap(true, Ordering::AcqRel) {
            return;
        }
        self.stats.breaker_opened.add(1);
        self.stats.breaker_open.add(1);
        breaker.opened_at = self.clock.now();
        let admitted = self.log_limiter.admit("the circuit breaker opened", &self.address);
        breaker.is_logged = admitted.is_some();
        if let Some(suppressed) = admitted {
            let node = &self.address;
            tracing::warn!(node, reason, suppressed, "the circuit breaker opened");
        }
        for signal in &self.signals {
            signal.wake();
        }
        self.refresh_needed.notify_one();
    }
}

impl CallTracker {
    /// Records the reply to the call.
    pub(crate) fn report(mut self, reply: &CommandReply) {
        self.reported = true;
        self.record(match reply {
            CommandReply::Value(_)
            | CommandReply::Decided(_)
            | CommandReply::NotHere
            | CommandReply::Redirect(..) => None,
            CommandReply::Failed(SendError { kind, .. }) => Some(*kind),
        });
    }

    /// Records how long the caller waited, in the node's statistics and in the call's trace.
    fn record(&self, error: Option<FailureKind>) {
        let waited = self.breaker.clock.now().saturating_sub(self.sent);
        // Rejected on our side: nobody waited for the node.
        let is_unsent = matches!(
            error,
            Some(
                FailureKind::NotConnected
                    | FailureKind::QueueFull
                    | FailureKind::Overload
                    | FailureKind::BreakerOpen
            )
        );
        if !is_unsent {
            self.breaker.stats.wait_times.record(waited.0);
        }
        current_trace::record(|trace| {
            let error = error.map(FailureKind::as_str);
            trace.record_node_call(&self.breaker.address, waited, error);
        });
    }
}

impl Drop for CallTracker {
    fn drop(&mut self) {
        // Otherwise the slowest calls would be missing from the statistics.
        if !self.reported {
            self.record(Some(FailureKind::TimedOut));
        }
    }
}

#[cfg(test)]
mod tests {

    use futures_util::FutureExt;
    use redis::Value;

    use super::*;

    /// Returns a breaker whose clock shows the number of microseconds in the second value.
    fn breaker() -> (Arc<NodeBreaker>, Arc<AtomicU64>) {
        let (clock, time, _) = MonotonicClock::manual();
        let signals = vec![Arc::default(), Arc::default()];
        let (stats, refresh_needed) = (Arc::default(), Arc::default());
        let breaker =
            NodeBreaker::new(clock, "10.0.0.1:6379".to_owned(), stats, refresh_needed, signals);
        (Arc::new(breaker), time)
    }

    fn counts(breaker: &NodeBreaker) -> (u64, u64) {
        (breaker.stats.breaker_opened.get(), breaker.stats.breaker_open.get())
    }

    #[test]
    fn a_breaker_that_opens_is_counted_once_and_wakes_every_connection() {
        let (breaker, _) = breaker();
        breaker.record_replies(19, 9, Micros(5));
        assert_eq!((breaker.is_open(), counts(&breaker)), (false, (0, 0)));
        breaker.record_replies(1, 0, Micros(3));
        assert_eq!(breaker.last_reply_at(), Micros(5), "the latest reply of any connection");
        breaker.record_replies(2, 2, Micros(6));
        assert_eq!((breaker.is_open(), counts(&breaker)), (true, (1, 1)));
        for signal in &breaker.signals {
            assert!(signal.wait().now_or_never().is_some());
        }
        assert!(breaker.refresh_needed.notified().now_or_never().is_some());
        breaker.record_silence();
        assert_eq!(counts(&breaker), (1, 1), "it is open already");
        breaker.close();
        breaker.close();
        assert_eq!((breaker.is_open(), counts(&breaker)), (false, (1, 0)));
        breaker.record_silence();
        assert_eq!((breaker.is_open(), counts(&breaker)), (true, (2, 1)));
    }

    #[test]
    fn failed_connects_count_only_in_a_row_and_while_no_connection_is_open() {
        let (breaker, _) = breaker();
        breaker.stats.connected.add(1);
        breaker.record_connect_failure();
        breaker.record_connect_failure();
        assert!(!breaker.is_open(), "the other connection serves");
        breaker.stats.connected.sub(1);
        breaker.record_connect_failure();
        breaker.record_connected();
        breaker.record_connect_failure();
        assert!(!breaker.is_open());
        breaker.record_connect_failure();
        assert!(breaker.is_open());
    }

    #[test]
    fn a_breaker_that_opens_again_and_again_is_logged_once_a_minute() {
        let (breaker, time) = breaker();
        for (at, is_logged) in [(0, true), (59_999_999, false), (60_000_000, true)] {
            time.store(at, Ordering::Relaxed);
            breaker.record_silence();
            assert_eq!(breaker.breaker.lock().is_logged, is_logged, "{at} us");
            breaker.close();
        }
    }

    #[test]
    fn only_waits_for_the_node_are_measured_each_of_them_once() {
        let (breaker, time) = breaker();
        let measured = |sent: u64, reply: Option<CommandReply>| {
            let before = breaker.stats.wait_times.snapshot();
            let tracker = breaker.track(Micros(sent));
            match reply {
                Some(reply) => tracker.report(&reply),
                None => drop(tracker),
            }
            let after = breaker.stats.wait_times.snapshot();
            let counts = [&before, &after].map(|snapshot| snapshot.counts.iter().sum::<u64>());
            (counts[1] - counts[0], after.sum - before.sum)
        };
        time.store(1_000, Ordering::Relaxed);
        assert_eq!(measured(400, Some(CommandReply::Value(Value::Nil))), (1, 600));
        assert_eq!(measured(300, Some(CommandReply::Failed(SendError::LOST))), (1, 700));
        assert_eq!(measured(200, None), (1, 800), "the caller timed out");
        for (kind, count) in [
            (FailureKind::NotConnected, 0),
            (FailureKind::QueueFull, 0),
            (FailureKind::Overload, 0),
            (FailureKind::BreakerOpen, 0),
            (FailureKind::Moving, 1),
            (FailureKind::Script, 1),
        ] {
            let failed = CommandReply::Failed(SendError::not_executed(kind));
            assert_eq!(measured(999, Some(failed)), (count, count), "{kind:?}");
        }
    }
}
