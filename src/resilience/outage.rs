//! Tracks outages of the remote store: logs the start and the end of each outage, and counts the
//! calls that the store did not answer.
//!
//! Not here: answering these calls (`fallback`), the names of metrics (`app`).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::Micros;

/// Time without an unanswered call after which an outage has ended. With this delay, a store that
/// fails one call in a hundred has one long outage, not many short ones.
const OUTAGE_END_DELAY: Micros = Micros::from_secs(5);

/// Reason why the remote store did not answer a call, so that the fallback decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// The call could not be sent or executed: no connection, a full queue, an open circuit
    /// breaker, or an error reply.
    Unreachable,
    /// The store did not answer within the budget of the call.
    Late,
    /// The call was not sent, because the limit of calls in flight was reached.
    Shed,
    /// An operator disabled the store, for example to rehearse an outage.
    Rehearsed,
}

impl FallbackReason {
    /// Every variant, in the order of the discriminants.
    pub const ALL: [FallbackReason; 4] = [
        FallbackReason::Unreachable,
        FallbackReason::Late,
        FallbackReason::Shed,
        FallbackReason::Rehearsed,
    ];

    /// Returns the name of the reason, as used in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            FallbackReason::Unreachable => "unreachable",
            FallbackReason::Late => "late",
            FallbackReason::Shed => "shed",
            FallbackReason::Rehearsed => "rehearsed",
        }
    }
}

/// Outage of the remote store, as `/readyz` and the log report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Time of the first call of the outage that the store did not answer, in microseconds since
    /// the Unix epoch.
    pub since: Micros,
    /// Time of the latest call that the store did not answer, in microseconds since the Unix epoch.
    pub latest: Micros,
    /// Reason why the store did not answer the latest call.
    pub reason: FallbackReason,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasted = self.latest.saturating_sub(self.since).ceil_secs();
        write!(f, "degraded for {lasted} s: the store is {}", self.reason.as_str())
    }
}

/// Lock-free tracker of the calls that the remote store did not answer, and of the current outage.
#[derive(Debug, Default)]
pub struct OutageTracker {
    calls: [AtomicU64; FallbackReason::ALL.len()],
    /// Start of the current outage in microseconds since the Unix epoch; zero if there is none.
    since: AtomicU64,
    latest: AtomicU64,
    reason: AtomicU64,
}

impl OutageTracker {
    /// Returns the number of calls since the start that the store did not answer for this reason.
    pub fn calls(&self, reason: FallbackReason) -> u64 {
        self.calls[reason as usize].load(Ordering::Relaxed)
    }

    /// Returns the current outage, or `None` without one.
    pub fn outage(&self, now: Micros) -> Option<Outage> {
        let since = Micros(self.since.load(Ordering::Relaxed));
        let latest = Micros(self.latest.load(Ordering::Relaxed));
        let is_over = since == Micros::ZERO || now.saturating_sub(latest) >= OUTAGE_END_DELAY;
        let reason = FallbackReason::ALL.get(self.reason.load(Ordering::Relaxed) as usize)?;
        (!is_over).then_some(Outage { since, latest, reason: *reason })
    }

    /// Records a call that the store did not answer. Returns whether this call starts an outage.
    pub(super) fn record_fallback(&self, reason: FallbackReason, now: Micros) -> bool {
        self.calls[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.latest.fetch_max(now.0, Ordering::Relaxed);
        let former = self.reason.swap(reason as u64, Ordering::Relaxed);
        let began = now.0.max(1);
        let is_first =
            self.since.compare_exchange(0, began, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Other changes of the reason are not logged, because reasons alternate while a store
        // fails.
        let rehearsal = |reason: u64| reason == FallbackReason::Rehearsed as u64;
        if is_first || rehearsal(former) != rehearsal(reason as u64) {
            tracing::warn!(reason = reason.as_str(), "answering without the store");
        }
        is_first
    }

    /// Records a call that the store answered. Takes a single atomic load if there is no outage.
    pub(super) fn record_success(&self, now: Micros) {
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 {
            return;
        }
        let latest = self.latest.load(Ordering::Relaxed);
        if now.0.saturating_sub(latest) >= OUTAGE_END_DELAY.0
            && self.since.compare_exchange(since, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let lasted_ms = Micros(latest.saturating_sub(since)).ceil_millis();
            tracing::info!(lasted_ms, "the store answers every call again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_763_668_800_000_000);

    #[test]
    fn an_outage_ends_after_five_seconds_without_a_fallback() {
        let tracker = OutageTracker::default();
        assert_eq!(tracker.outage(NOW), None);
        tracker.record_fallback(FallbackReason::Late, NOW);
        let second = NOW.saturating_add(Micros::SECOND);
        tracker.record_success(second);
        tracker.record_fallback(FallbackReason::Unreachable, second);
        let outage = Outage { since: NOW, latest: second, reason: FallbackReason::Unreachable };
        assert_eq!(tracker.outage(second), Some(outage));
        assert_eq!(outage.to_string(), "degraded for 1 s: the store is unreachable");
        let later = second.saturating_add(OUTAGE_END_DELAY);
        assert_eq!(tracker.outage(later), None);
        tracker.record_success(later);
        tracker.record_fallback(FallbackReason::Shed, later);
        assert_eq!(tracker.outage(later).unwrap().since, later);
        assert_eq!(
            (tracker.calls(FallbackReason::Late), tracker.calls(FallbackReason::Shed)),
            (1, 1)
        );
    }
}
