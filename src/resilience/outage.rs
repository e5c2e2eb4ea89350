//! Tracks outages of the remote store: logs the start and the end of each outage, and counts the
//! calls that the store did not answer.
//!
//! The service is degraded while a circuit breaker is open, while an operator has disabled the
//! store, or while more than 1 % of the last second's calls were not decided by the store. The log,
//! `/readyz`, the live page, and the metrics all use this definition.
//!
//! Not here: deciding the unanswered calls (`fallback`), the names of metrics (`app`).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::recent_calls::{RecentCalls, RecentCounts};
use crate::clock::Clock;
use crate::domain::Micros;

/// Percentage of the last second's calls that the store may leave undecided before the service
/// counts as degraded. A single late call among hundreds is not an outage.
const UNDECIDED_PERCENT_MAX: u64 = 1;

/// Interval at which calls update the current outage, 1 s. An outage ends at most this much later
/// than the calls of the last second say.
const UPDATE_INTERVAL: Micros = Micros::SECOND;

/// Minimum time between two log lines about the start of an outage.
const LOG_INTERVAL: Micros = Micros::from_secs(60);

/// Reason why a call was decided by the fallback instead of the remote store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// The call could not be sent or executed: no connection, a full queue, an open circuit
    /// breaker, or an error reply.
    Unreachable,
    /// The store did not answer within the call's time budget.
    TimedOut,
    /// The call was not sent, because an answer would have come too late: too many other calls
    /// were waiting, or the deadline was too close.
    Shed,
    /// An operator has disabled the store, for example to rehearse an outage.
    Rehearsed,
}

impl FallbackReason {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [FallbackReason; 4] = [
        FallbackReason::Unreachable,
        FallbackReason::TimedOut,
        FallbackReason::Shed,
        FallbackReason::Rehearsed,
    ];

    /// Returns the name of the reason, as used in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            FallbackReason::Unreachable => "unreachable",
            FallbackReason::TimedOut => "late",
            FallbackReason::Shed => "shed",
            FallbackReason::Rehearsed => "rehearsed",
        }
    }
}

/// Current outage of the remote store, as reported by `/readyz`, the live page, and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Time since the outage began, measured with the monotonic clock.
    pub duration: Micros,
    /// Percentage of the last second's calls that the store did not decide, rounded up; 0 to 100.
    pub undecided_percent: u64,
    /// Reason why the store did not answer the most recent unanswered call. If the store answered
    /// every call of the last second, this is the reason why it is unavailable.
    pub reason: FallbackReason,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lasted_s, reason) = (self.duration.ceil_secs(), self.reason.as_str());
        write!(f, "degraded for {lasted_s} s: ")?;
        match self.undecided_percent {
            0 => write!(f, "the store is {reason}"),
            percent => {
                write!(f, "{percent} % of the last second's calls decided locally ({reason})")
            }
        }
    }
}

/// Tracker of outages: counts the calls that the store did not answer, and records the current
/// outage. Takes no locks.
#[derive(Debug)]
pub struct OutageTracker {
    calls: [AtomicU64; FallbackReason::ALL.len()],
    recent: RecentCalls,
    clock: Clock,
    origin: Instant,
    /// Wall-clock time at which a call last claimed an update of the current outage.
    updated_at: AtomicU64,
    /// Start of the current outage, in microseconds since the tracker was created (`origin`); 0 if
    /// there is none.
    start: AtomicU64,
    /// Reason for the most recent unanswered call, as a discriminant of [`FallbackReason`].
    reason: AtomicU64,
    /// Whether the start of the current outage has been logged.
    is_logged: AtomicBool,
    /// Earliest time at which the start of an outage may be logged again, in microseconds since the
    /// tracker was created (`origin`).
    next_log_at: AtomicU64,
}

impl OutageTracker {
    /// Creates a tracker that measures outages with the monotonic time of `clock`.
    pub(super) fn new(clock: Clock) -> Self {
        OutageTracker {
            calls: Default::default(),
            recent: RecentCalls::default(),
            origin: clock.monotonic_now(),
            clock,
            updated_at: AtomicU64::new(0),
            start: AtomicU64::new(0),
            reason: AtomicU64::new(0),
            is_logged: AtomicBool::new(false),
            next_log_at: AtomicU64::new(0),
        }
    }

    /// Returns whether the current outage must be updated now, and counts it as updated. Returns
    /// true to one caller in each [`UPDATE_INTERVAL`], and after the clock has stepped back.
    pub(super) fn claim_update(&self, now: Micros) -> bool {
        let last = self.updated_at.load(Ordering::Relaxed);
        now.0.wrapping_sub(last) >= UPDATE_INTERVAL.0
            && self
                .updated_at
                .compare_exchange(last, now.0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Returns the number of calls since startup that the store did not answer because of `reason`.
    pub fn calls(&self, reason: FallbackReason) -> u64 {
        self.calls[reason as usize].load(Ordering::Relaxed)
    }

    /// Updates the current outage and returns it, or `None` if there is none. Call it at least once
    /// a second, because it logs the start and the end of outages. `unavailable` is the reason why
    /// the store accepts no calls at all, or `None` if it accepts calls.
    pub(super) fn update(
        &self,
        now: Micros,
        unavailable: Option<FallbackReason>,
    ) -> Option<Outage> {
        let RecentCounts { calls, undecided } = self.recent.counts(now);
        let is_degraded = unavailable.is_some() || undecided * 100 > calls * UNDECIDED_PERCENT_MAX;
        if !is_degraded {
            let since = self.start.swap(0, Ordering::Relaxed);
            if self.is_logged.swap(false, Ordering::Relaxed) {
                let lasted_ms = self.elapsed().saturating_sub(Micros(since)).ceil_millis();
                tracing::info!(lasted_ms, "the store answers again");
            }
            return None;
        }
        let latest = FallbackReason::ALL.get(self.reason.load(Ordering::Relaxed) as usize).copied();
        let outage = Outage {
            duration: self.elapsed().saturating_sub(self.ensure_started()),
            undecided_percent: (undecided * 100).div_ceil(calls.max(1)),
            reason: match unavailable {
                Some(reason) if undecided == 0 => reason,
                _ => latest.or(unavailable)?,
            },
        };
        if self.is_log_due() && !self.is_logged.swap(true, Ordering::Relaxed) {
            let next = self.elapsed().saturating_add(LOG_INTERVAL);
            self.next_log_at.store(next.0, Ordering::Relaxed);
            let (reason, undecided_percent) = (outage.reason.as_str(), outage.undecided_percent);
            tracing::warn!(reason, undecided_percent, "answering without the store");
        }
        Some(outage)
    }

    /// Records a call that the store did not answer.
    pub(super) fn record_fallback(&self, reason: FallbackReason, now: Micros) {
        self.calls[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.recent.record(now, false);
        let former = self.reason.swap(reason as u64, Ordering::Relaxed);
        self.ensure_started();
        // Other changes of the reason are not logged, because reasons alternate while a store
        // fails.
        let rehearsal = |reason: u64| reason == FallbackReason::Rehearsed as u64;
        if rehearsal(former) != rehearsal(reason as u64) {
            self.is_logged.store(false, Ordering::Relaxed);
            self.next_log_at.store(0, Ordering::Relaxed);
        }
        if self.is_log_due() {
            self.update(now, None);
        }
    }

    /// Returns whether the start of the current outage must be logged now. The log interval
    /// prevents a store that fails some calls from logging a start and an end for each of them. An
    /// outage that outlasts the interval is logged when the interval ends.
    fn is_log_due(&self) -> bool {
        !self.is_logged.load(Ordering::Relaxed)
            && self.elapsed().0 >= self.next_log_at.load(Ordering::Relaxed)
    }

    /// Records a call that the store answered. Does not end an outage by itself.
    pub(super) fn record_success(&self, now: Micros) {
        self.recent.record(now, true);
    }

    /// Returns the start of the current outage, in microseconds since the tracker was created. If
    /// there is no outage, records that one starts now.
    fn ensure_started(&self) -> Micros {
        let since = self.start.load(Ordering::Relaxed);
        if since > 0 {
            return Micros(since);
        }
        let now = Micros(self.elapsed().0.max(1));
        let known = self.start.compare_exchange(0, now.0, Ordering::Relaxed, Ordering::Relaxed);
        known.map_or_else(Micros, |_| now)
    }

    /// Returns the time since the tracker was created. Uses the monotonic clock, because the wall
    /// clock can jump.
    fn elapsed(&self) -> Micros {
        let since = self.clock.monotonic_now().saturating_duration_since(self.origin);
        Micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_763_668_800_000_000);

    fn at_millis(millis: u64) -> Micros {
        Micros(NOW.0 + millis * 1_000)
    }

    #[test]
    fn more_than_one_percent_of_undecided_calls_in_a_second_is_an_outage() {
        let tracker = OutageTracker::new(Clock::System);
        assert_eq!(tracker.update(NOW, None), None);
        for call in 0..99 {
            tracker.record_success(at_millis(call));
        }
        tracker.record_fallback(FallbackReason::TimedOut, at_millis(100));
        assert_eq!(tracker.update(at_millis(100), None), None, "one of a hundred");
        tracker.record_fallback(FallbackReason::Shed, at_millis(101));
        let outage = tracker.update(at_millis(101), None).unwrap();
        assert_eq!((outage.undecided_percent, outage.reason), (2, FallbackReason::Shed));
        let text = "s: 2 % of the last second's calls decided locally (shed)";
        assert!(outage.to_string().ends_with(text), "{outage}");
        assert_eq!(tracker.update(at_millis(1_300), None), None, "a second later");
        assert_eq!(tracker.calls(FallbackReason::TimedOut), 1);
        assert_eq!(tracker.calls(FallbackReason::Shed), 1);
    }

    #[test]
    fn an_unavailable_store_is_an_outage_even_without_calls() {
        let tracker = OutageTracker::new(Clock::System);
        let outage = tracker.update(NOW, Some(FallbackReason::Unreachable)).unwrap();
        assert!(outage.to_string().ends_with("s: the store is unreachable"), "{outage}");
        assert!(tracker.start.load(Ordering::Relaxed) > 0);
        assert_eq!(tracker.update(NOW, None), None);
        assert_eq!(tracker.start.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_outage_names_the_latest_unanswered_call_or_else_why_the_store_is_unavailable() {
        let tracker = OutageTracker::new(Clock::System);
        tracker.record_fallback(FallbackReason::TimedOut, NOW);
        let reason = |now, unavailable| tracker.update(now, Some(unavailable)).unwrap().reason;
        assert_eq!(reason(NOW, FallbackReason::Unreachable), FallbackReason::TimedOut);
        assert_eq!(reason(at_millis(2_000), FallbackReason::Rehearsed), FallbackReason::Rehearsed);
    }

    #[test]
    fn the_wall_clock_does_not_change_the_duration_of_an_outage() {
        let tracker = OutageTracker::new(Clock::System);
        tracker.record_fallback(FallbackReason::TimedOut, NOW);
        tracker.record_fallback(FallbackReason::TimedOut, at_millis(86_400_000));
        let outage = tracker.update(at_millis(86_400_000), None).unwrap();
        assert!(outage.duration < Micros::from_secs(3_600), "{outage}");
    }
}
