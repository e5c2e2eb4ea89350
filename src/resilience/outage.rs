//! Tracks outages of the remote store: one log line when an outage begins, one when it has ended, and
//! counts of the calls in between.
//!
//! Not here: how these calls are answered (`fallback`), the names of metrics (`app`).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::Micros;

/// Time without a fallback after which an outage has ended: a store that fails one call in a hundred
/// has one outage, not a hundred.
const OVER_AFTER: Micros = Micros::from_secs(5);

/// Why the store did not answer a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// The call could not be sent: no connection, a full queue, an open circuit breaker, an error reply.
    Unreachable,
    /// No answer arrived in time.
    Late,
    /// Too many calls were in flight.
    Shed,
    /// An operator disabled the store to rehearse an outage.
    Rehearsed,
}

impl FallbackReason {
    /// All reasons, in the order of the counters.
    pub const ALL: [FallbackReason; 4] = [
        FallbackReason::Unreachable,
        FallbackReason::Late,
        FallbackReason::Shed,
        FallbackReason::Rehearsed,
    ];

    /// The word used in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            FallbackReason::Unreachable => "unreachable",
            FallbackReason::Late => "late",
            FallbackReason::Shed => "shed",
            FallbackReason::Rehearsed => "rehearsed",
        }
    }
}

/// An outage, as the health detail shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Time of the first call that the store did not answer.
    pub since: Micros,
    /// Time of the latest such call.
    pub latest: Micros,
    /// Why the store did not answer that call.
    pub reason: FallbackReason,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasted = self.latest.saturating_sub(self.since).ceil_secs();
        write!(f, "degraded for {lasted} s: the store is {}", self.reason.as_str())
    }
}

/// Calls that the store did not answer, and the outage they belong to. Safe to share: all atomics.
#[derive(Debug, Default)]
pub struct OutageTracker {
    calls: [AtomicU64; FallbackReason::ALL.len()],
    /// Zero without an outage.
    since: AtomicU64,
    latest: AtomicU64,
    reason: AtomicU64,
}

impl OutageTracker {
    /// Returns the total of calls that the store did not answer for that reason.
    pub fn calls(&self, reason: FallbackReason) -> u64 {
        self.calls[reason as usize].load(Ordering::Relaxed)
    }

    /// Returns the current outage, if there is one.
    pub fn outage(&self, now: Micros) -> Option<Outage> {
        let since = Micros(self.since.load(Ordering::Relaxed));
        let latest = Micros(self.latest.load(Ordering::Relaxed));
        let is_over = since == Micros::ZERO || now.saturating_sub(latest) >= OVER_AFTER;
        let reason = FallbackReason::ALL.get(self.reason.load(Ordering::Relaxed) as usize)?;
        (!is_over).then_some(Outage { since, latest, reason: *reason })
    }

    /// Records a call that the store did not answer. Returns whether an outage began with it.
    pub(super) fn record_fallback(&self, reason: FallbackReason, now: Micros) -> bool {
        self.calls[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.latest.fetch_max(now.0, Ordering::Relaxed);
        let former = self.reason.swap(reason as u64, Ordering::Relaxed);
        let began = now.0.max(1);
        let is_first =
            self.since.compare_exchange(0, began, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Other changes of the reason are not logged: reasons alternate while a store fails.
        let rehearsal = |reason: u64| reason == FallbackReason::Rehearsed as u64;
        if is_first || rehearsal(former) != rehearsal(reason as u64) {
            tracing::warn!(reason = reason.as_str(), "answering without the store");
        }
        is_first
    }

    /// Records a call that the store answered. Costs one load without an outage.
    pub(super) fn record_success(&self, now: Micros) {
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 {
            return;
        }
        let latest = self.latest.load(Ordering::Relaxed);
        if now.0.saturating_sub(latest) >= OVER_AFTER.0
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
        let later = second.saturating_add(OVER_AFTER);
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
