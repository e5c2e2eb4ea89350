//! Circuit breaker of one node, shared by all callers: admits calls and records their results.
//!
//! While the breaker is fully closed, callers read two atomics and take no lock. Not here: the
//! conditions for opening and closing (`circuit_breaker`).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::backoff::random;
use super::circuit_breaker::{BreakerEpoch, BreakerState, CallFailure, CircuitBreaker};
use super::config::MonotonicClock;
use super::node_stats::NodeStats;
use super::pending_command::CommandReply;
use super::transport::{SendError, SendErrorKind};
use crate::domain::Micros;
use crate::store::current_trace;

/// Shortest wait that counts as a timeout. If a caller stopped waiting earlier, it was cancelled,
/// which says nothing about the node.
const TIMEOUT_MIN: Micros = Micros(3_000);

/// Circuit breaker of one node, shared by its callers, with its clock and the node's statistics.
pub(crate) struct NodeBreaker {
    clock: MonotonicClock,
    breaker: Mutex<CircuitBreaker>,
    /// Whether the breaker is closed and sends every call. While it is, successes are only counted
    /// in `successes`, without the lock.
    fully_closed: AtomicBool,
    epoch: AtomicU32,
    /// Number of successful calls that are not recorded in `breaker` yet.
    successes: AtomicU64,
    address: String,
    stats: Arc<NodeStats>,
    refresh_needed: Arc<Notify>,
}

impl std::fmt::Debug for NodeBreaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBreaker").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Timer of an admitted call, through which the call's result is reported to the breaker. If it is
/// dropped without a report, the call counts as a timeout.
#[derive(Debug)]
pub(crate) struct CallTracker {
    breaker: Arc<NodeBreaker>,
    epoch: BreakerEpoch,
    sent: Micros,
    reported: bool,
}

impl NodeBreaker {
    pub(crate) fn new(
        clock: MonotonicClock,
        address: String,
        stats: Arc<NodeStats>,
        refresh_needed: Arc<Notify>,
    ) -> NodeBreaker {
        NodeBreaker {
            clock,
            breaker: Mutex::default(),
            fully_closed: AtomicBool::new(true),
            epoch: AtomicU32::new(0),
            successes: AtomicU64::new(0),
            address,
            stats,
            refresh_needed,
        }
    }

    /// Admits or rejects a call. Returns `None` if the breaker rejects it.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<CallTracker> {
        let sent = self.clock.now();
        let epoch = if self.is_fully_closed() {
            BreakerEpoch(self.epoch.load(Ordering::Relaxed))
        } else {
            let mut breaker = self.lock();
            let epoch = breaker.admit(sent, random());
            self.update_atomics(&breaker);
            epoch?
        };
        Some(CallTracker { breaker: Arc::clone(self), epoch, sent, reported: false })
    }

    /// Returns the state of the breaker.
    pub(crate) fn state(&self) -> BreakerState {
        self.lock().state()
    }

    /// Returns whether the breaker is closed and the ramp is over, so that every call is sent.
    pub(crate) fn is_fully_closed(&self) -> bool {
        self.fully_closed.load(Ordering::Relaxed)
    }

    fn record_success(&self, epoch: BreakerEpoch) {
        if self.is_fully_closed() {
            self.successes.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut breaker = self.lock();
        breaker.record_success(epoch, 1, self.clock.now());
        if breaker.state() == BreakerState::Closed && self.stats.breaker_open.get() > 0 {
            self.stats.breaker_open.sub(1);
            tracing::info!(node = self.address, "the circuit breaker closed");
        }
        self.update_atomics(&breaker);
    }

    fn record_failure(&self, epoch: BreakerEpoch, failure: CallFailure) {
        let mut breaker = self.lock();
        let now = self.clock.now();
        let was_closed = breaker.state() == BreakerState::Closed;
        let successes = self.successes.swap(0, Ordering::Relaxed);
        let present = breaker.epoch();
        breaker.record_success(present, successes, now);
        breaker.record_failure(epoch, failure, now, random());
        if was_closed && breaker.state() == BreakerState::Open {
            self.stats.breaker_opened.add(1);
            if self.stats.breaker_open.get() == 0 {
                self.stats.breaker_open.add(1);
            }
            tracing::warn!(node = self.address, ?failure, "the circuit breaker opened");
            self.refresh_needed.notify_one();
        }
        self.update_atomics(&breaker);
    }

    /// Updates the atomics that callers read without the lock. Called with the lock held.
    fn update_atomics(&self, breaker: &CircuitBreaker) {
        self.epoch.store(breaker.epoch().0, Ordering::Relaxed);
        self.fully_closed.store(breaker.is_fully_closed(), Ordering::Relaxed);
    }

    /// Locks the breaker. Ignores poisoning, because no code under the lock can panic halfway
    /// through a change.
    fn lock(&self) -> MutexGuard<'_, CircuitBreaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallTracker {
    fn elapsed(&self) -> Micros {
        self.breaker.clock.now().saturating_sub(self.sent)
    }

    /// Returns the time that the caller has waited for the reply, and adds it to the node's
    /// statistics.
    fn record_wait(&self) -> Micros {
        let waited = self.elapsed();
        self.breaker.stats.wait_times.record(waited.0);
        waited
    }

    /// Reports the result of the call to the breaker and to the call's trace.
    pub(crate) fn report(mut self, reply: &CommandReply) {
        self.reported = true;
        let CommandReply::Failed(SendError { kind, .. }) = reply else {
            let waited = self.record_wait();
            current_trace::record(|trace| {
                trace.record_node_call(&self.breaker.address, waited, None)
            });
            return self.breaker.record_success(self.epoch);
        };
        // A trace also shows calls that were rejected without being written.
        current_trace::record(|trace| {
            trace.record_node_call(&self.breaker.address, self.elapsed(), Some(kind.as_str()))
        });
        match kind {
            // Rejected on our side, which says nothing about the node.
            SendErrorKind::NotConnected | SendErrorKind::QueueFull | SendErrorKind::BreakerOpen => {
                return;
            }
            SendErrorKind::Lost => self.breaker.record_failure(self.epoch, CallFailure::NoReply),
            SendErrorKind::Moving | SendErrorKind::NotMaster | SendErrorKind::Busy => {
                self.breaker.record_failure(self.epoch, CallFailure::ErrorReply);
            }
            // The node responds; even one that cannot write still evaluates limits.
            SendErrorKind::NotWritable | SendErrorKind::Denied | SendErrorKind::Script => {
                self.breaker.record_success(self.epoch);
            }
        }
        self.record_wait();
    }
}

impl Drop for CallTracker {
    fn drop(&mut self) {
        // Otherwise the slowest calls would be missing from the statistics.
        if self.reported {
            return;
        }
        let waited = self.record_wait();
        current_trace::record(|trace| {
            trace.record_node_call(&self.breaker.address, waited, Some("timeout"))
        });
        if waited >= TIMEOUT_MIN {
            self.breaker.record_failure(self.epoch, CallFailure::NoReply);
        }
    }
}
