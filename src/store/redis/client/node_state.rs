//! State of one node that its callers and its connections share, with its circuit breaker.
//!
//! Callers read one atomic and take no lock. Connections report failed connection attempts, missing
//! replies, error replies, and replies to PING. Not here: the conditions for opening
//! (`circuit_breaker`), the queues of the connections (`node`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use super::circuit_breaker::CircuitBreaker;
use super::client_context::ClientContext;
use super::config::{Address, MonotonicClock};
use super::connection_load::ConnectionLoad;
use super::loss_detector::LossDetector;
use super::node_stats::NodeStats;
use super::reply_slot::CommandReply;
use crate::domain::{FailureKind, Lock, Micros};
use crate::store::current_trace;

/// What a node, its callers, and the tasks of its connections share.
#[derive(Debug)]
pub(crate) struct NodeState {
    pub(super) context: Arc<ClientContext>,
    pub(super) address: Address,
    pub(super) stats: Arc<NodeStats>,
    pub(super) loss_detector: LossDetector,
    /// Notification that a connection was lost or cannot be opened, or that an error reply suggests
    /// a change of topology.
    pub(super) refresh_needed: Arc<Notify>,
    pub(super) connections: Box<[Arc<ConnectionStatus>]>,
    breaker: Lock<LoggedBreaker>,
    is_open: AtomicBool,
    /// Number of replies received from the node so far, on all connections.
    replies: AtomicU64,
    /// Time of the latest reply on any connection, in microseconds of the breaker's clock.
    last_reply_at: AtomicU64,
}

/// Circuit breaker, with the state that rate-limits its log lines.
#[derive(Debug, Default)]
struct LoggedBreaker {
    breaker: CircuitBreaker,
    opened_at: Micros,
    /// Whether the latest opening was logged. If not, the next closing is not logged either.
    is_logged: bool,
}

/// What the task of one connection shares with the callers of the node.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStatus {
    /// Whether the connection is open and accepts commands.
    pub(super) is_ready: AtomicBool,
    pub(super) load: ConnectionLoad,
    pub(super) is_broken: AtomicBool,
    /// Signal that wakes the task when the connection breaks or the node's circuit breaker opens.
    pub(super) signal: Notify,
}

/// Timer of one call, which records the call's wait in the node's statistics and in the call's
/// trace. If dropped before [`report`](Self::report), the timer records the wait so far, with the
/// error `timeout` in the trace.
#[derive(Debug)]
pub(crate) struct CallTracker {
    node: Arc<NodeState>,
    sent: Micros,
    reported: bool,
}

impl NodeState {
    pub(super) fn new(
        context: Arc<ClientContext>,
        address: Address,
        refresh_needed: Arc<Notify>,
    ) -> NodeState {
        let connections = context.config.connections_per_node.max(1);
        let (stats, loss_detector, breaker) = Default::default();
        NodeState {
            connections: (0..connections).map(|_| Arc::default()).collect(),
            context,
            address,
            stats,
            loss_detector,
            refresh_needed,
            breaker,
            is_open: AtomicBool::new(false),
            replies: AtomicU64::new(0),
            last_reply_at: AtomicU64::new(0),
        }
    }

    /// Returns the clock of the breaker and of all measurements. `None` disables them.
    pub(super) fn clock(&self) -> Option<&MonotonicClock> {
        self.context.config.breaker_clock.as_ref()
    }

    /// Returns the current time of the clock; `None` if there is none.
    pub(super) fn now(&self) -> Option<Micros> {
        self.clock().map(MonotonicClock::now)
    }

    /// Returns whether the breaker is open, so that no call may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Creates the timer of a call that was queued at `sent`.
    pub(super) fn track(self: &Arc<Self>, sent: Micros) -> CallTracker {
        CallTracker { node: Arc::clone(self), sent, reported: false }
    }

    /// Returns the time of the node's latest reply on any connection.
    pub(super) fn last_reply_at(&self) -> Micros {
        Micros(self.last_reply_at.load(Ordering::Relaxed))
    }

    /// Records a batch of replies. `replies` is the number of replies, and `errors` is the number
    /// of those that are errors from a node that cannot serve calls. Opens the breaker if there are
    /// too many errors.
    pub(super) fn record_replies(&self, replies: usize, errors: u64, now: Micros) {
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
    pub(super) fn record_connect_failure(&self) {
        if self.stats.connected.get() > 0 {
            return;
        }
        let mut breaker = self.breaker.lock();
        if breaker.breaker.record_connect_failure() {
            self.open(&mut breaker, "connect_failures");
        }
    }

    pub(super) fn record_connected(&self) {
        self.breaker.lock().breaker.record_connected();
    }

    /// Opens the breaker because the node sent nothing while a command was waiting for its reply.
    pub(super) fn record_silence(&self) {
        self.open(&mut self.breaker.lock(), "silence");
    }

    /// Closes the breaker after the node has replied to a PING in time.
    pub(super) fn close(&self) {
        let mut breaker = self.breaker.lock();
        if self.is_open.swap(false, Ordering::AcqRel) {
            breaker.breaker = CircuitBreaker::default();
            self.stats.breaker_open.sub(1);
            if breaker.is_logged {
                let now = self.now().unwrap_or_default();
                let open_ms = now.saturating_sub(breaker.opened_at).ceil_millis();
                let node = self.address.to_string();
                tracing::info!(node, open_ms, "the circuit breaker closed");
            }
        }
    }

    /// Opens the breaker and wakes every connection, which then rejects its queued commands. Does
    /// nothing without a clock.
    fn open(&self, breaker: &mut LoggedBreaker, reason: &'static str) {
        let Some(now) = self.now() else { return };
        if self.is_open.swap(true, Ordering::AcqRel) {
            return;
        }
        self.stats.breaker_opened.add(1);
        self.stats.breaker_open.add(1);
        breaker.opened_at = now;
        let limiter = &self.context.log_limiter;
        let admitted = limiter.admit("the circuit breaker opened", &self.address);
        breaker.is_logged = admitted.is_some();
        if let Some(suppressed) = admitted {
            let node = self.address.to_string();
            tracing::warn!(node, reason, suppressed, "the circuit breaker opened");
        }
        for connection in &self.connections {
            connection.signal.notify_one();
        }
        self.refresh_needed.notify_one();
    }
}

impl CallTracker {
    /// Records the reply to the call.
    pub(super) fn report(mut self, reply: &CommandReply) {
        self.reported = true;
        self.record(match reply {
            CommandReply::Final(Err(error)) => Some(error.kind),
            CommandReply::Final(Ok(_)) | CommandReply::Redirect(..) => None,
        });
    }

    /// Records how long the caller waited, in the node's statistics and in the call's trace.
    fn record(&self, error: Option<FailureKind>) {
        let waited = self.node.now().unwrap_or_default().saturating_sub(self.sent);
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
            self.node.stats.wait_times.record(waited.0);
        }
        current_trace::record(|trace| {
            let error = error.map(FailureKind::as_str);
            trace.record_node_call(&self.node.address.to_string(), waited, error);
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
impl NodeState {
    /// Returns the state of the node 10.0.0.1:6379, which has two connections.
    pub(super) fn for_test(clock: MonotonicClock) -> Arc<NodeState> {
        let config = super::config::RedisConfig {
            breaker_clock: Some(clock),
            connections_per_node: 2,
            ..Default::default()
        };
        let context = Arc::new(ClientContext::new(config, Vec::new()).unwrap());
        let address = Address::Tcp("10.0.0.1".to_owned(), 6379);
        Arc::new(NodeState::new(context, address, Arc::default()))
    }
}

#[cfg(test)]
mod tests {

    use futures_util::FutureExt;
    use redis::Value;

    use super::*;
    use crate::store::redis::client::reply_slot::CallReply;
    use crate::store::redis::client::send_error::SendError;

    /// Returns a node whose clock shows the number of microseconds in the second value.
    fn breaker() -> (Arc<NodeState>, Arc<AtomicU64>) {
        let (clock, time, _) = MonotonicClock::manual();
        (NodeState::for_test(clock), time)
    }

    fn counts(breaker: &NodeState) -> (u64, u64) {
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
        for connection in &breaker.connections {
            assert!(connection.signal.notified().now_or_never().is_some());
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
        let nil = CommandReply::Final(Ok(CallReply::Script(Value::Nil)));
        assert_eq!(measured(400, Some(nil)), (1, 600));
        let lost = CommandReply::Final(Err(SendError::LOST));
        assert_eq!(measured(300, Some(lost)), (1, 700));
        assert_eq!(measured(200, None), (1, 800), "the caller timed out");
        for (kind, count) in [
            (FailureKind::NotConnected, 0),
            (FailureKind::QueueFull, 0),
            (FailureKind::Overload, 0),
            (FailureKind::BreakerOpen, 0),
            (FailureKind::Moving, 1),
            (FailureKind::Script, 1),
        ] {
            let failed = CommandReply::Final(Err(SendError::not_executed(kind)));
            assert_eq!(measured(999, Some(failed)), (count, count), "{kind:?}");
        }
    }
}
