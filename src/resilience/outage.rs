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
use crate::domain::{FailureKind, Lock, Micros};

/// Percentage of the last second's calls that the store may leave undecided before the service
/// counts as degraded. A single late call among hundreds is not an outage.
const UNDECIDED_PERCENT_MAX: u64 = 1;

/// Interval at which calls update the current outage, 1 s. An outage ends at most this much later
/// than the calls of the last second say.
const UPDATE_INTERVAL: Micros = Micros::SECOND;

/// Minimum time between two log lines about the start of an outage.
const LOG_INTERVAL: Micros = Micros::from_secs(60);

/// Current outage of the remote store, as reported by `/readyz`, the live page, and the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Time since the outage began, measured with the monotonic clock.
    pub duration: Micros,
    /// Percentage of the last second's calls that the store did not decide, rounded up; 0 to 100.
    /// `None` if there were no calls.
    pub undecided_percent: Option<u64>,
    /// Reason why the store did not answer the most recent unanswered call. If the store answered
    /// every call of the last second, this is the reason why it is unavailable.
    pub kind: FailureKind,
    /// The reason in words, with the server and its error if they are known.
    pub reason: String,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lasted_s, reason) = (self.duration.ceil_secs(), &self.reason);
        write!(f, "degraded for {lasted_s} s: ")?;
        if let Some(percent) = self.undecided_percent.filter(|percent| *percent > 0) {
            write!(f, "{percent} % of the last second's calls decided without Redis: ")?;
        }
        f.write_str(reason)
    }
}

/// Tracker of outages: counts the calls that the store did not answer, and records the current
/// outage. Takes no locks.
#[derive(Debug)]
pub struct OutageTracker {
    calls: [AtomicU64; FailureKind::ALL.len()],
    recent: RecentCalls,
    clock: Clock,
    origin: Instant,
    /// Wall-clock time at which a call last claimed an update of the current outage.
    updated_at: AtomicU64,
    /// Start of the current outage, in microseconds since the tracker was created (`origin`); 0 if
    /// there is none.
    start: AtomicU64,
    /// Reason for the most recent unanswered call, as a discriminant of [`FailureKind`].
    kind: AtomicU64,
    /// Start of the outage whose start was logged and whose end was not, in microseconds since the
    /// tracker was created (`origin`); 0 if there is none.
    logged_start: AtomicU64,
    /// The reason in its log line. Locked only to log.
    logged_reason: Lock<String>,
    /// Whether the store has decided a call since the latest unanswered one.
    has_decided: AtomicBool,
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
            kind: AtomicU64::new(0),
            logged_start: AtomicU64::new(0),
            logged_reason: Lock::default(),
            has_decided: AtomicBool::new(false),
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

    /// Returns the number of calls since startup that the store did not answer because of `kind`.
    pub fn calls(&self, kind: FailureKind) -> u64 {
        self.calls[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of calls since startup that the store did not answer for such a reason.
    pub fn calls_if(&self, condition: impl Fn(FailureKind) -> bool) -> u64 {
        let counted = FailureKind::ALL.iter().filter(|kind| condition(**kind));
        counted.map(|kind| self.calls(*kind)).sum()
    }

    /// Updates the current outage and returns it, or `None` if there is none. Call it at least once
    /// a second, because it logs the start and the end of outages. `unavailable` is the reason why
    /// the store accepts no calls at all, or `None` if it accepts calls. `failure` returns what the
    /// store knows of its latest failure of a kind.
    pub(super) fn update(
        &self,
        now: Micros,
        unavailable: Option<FailureKind>,
        failure: impl FnOnce(FailureKind) -> Option<String>,
    ) -> Option<Outage> {
        let RecentCounts { calls, undecided } = self.recent.counts(now);
        let is_degraded = unavailable.is_some() || undecided * 100 > calls * UNDECIDED_PERCENT_MAX;
        if !is_degraded {
            self.start.store(0, Ordering::Relaxed);
            // A breaker that has closed is no answer yet.
            if self.has_decided.load(Ordering::Relaxed) {
                let since = self.logged_start.swap(0, Ordering::Relaxed);
                if since > 0 {
                    let lasted_ms = self.elapsed().saturating_sub(Micros(since)).ceil_millis();
                    let reason = &*self.logged_reason.lock();
                    tracing::info!(reason, lasted_ms, "no longer degraded");
                }
            }
            return None;
        }
        let latest = FailureKind::ALL.get(self.kind.load(Ordering::Relaxed) as usize).copied();
        let kind = match unavailable {
            Some(kind) if undecided == 0 => kind,
            _ => latest.or(unavailable)?,
        };
        let start = self.ensure_started();
        let outage = Outage {
            duration: self.elapsed().saturating_sub(start),
            undecided_percent: (calls > 0).then(|| (undecided * 100).div_ceil(calls)),
            kind,
            reason: failure(kind).unwrap_or_else(|| kind.describe().to_owned()),
        };
        if self.is_log_due() && self.logged_start.swap(start.0, Ordering::Relaxed) == 0 {
            let next = self.elapsed().saturating_add(LOG_INTERVAL);
            self.next_log_at.store(next.0, Ordering::Relaxed);
            self.has_decided.store(false, Ordering::Relaxed);
            let (reason, undecided_percent) = (&*outage.reason, outage.undecided_percent);
            tracing::warn!(reason, undecided_percent, "degraded: deciding without Redis");
            outage.reason.clone_into(&mut self.logged_reason.lock());
        }
        Some(outage)
    }

    /// Records a call that the store did not answer.
    pub(super) fn record_fallback(
        &self,
        kind: FailureKind,
        now: Micros,
        failure: impl FnOnce(FailureKind) -> Option<String>,
    ) {
        self.calls[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.recent.record(now, false);
        self.has_decided.store(false, Ordering::Relaxed);
        let former = self.kind.swap(kind as u64, Ordering::Relaxed);
        self.ensure_started();
        // Other changes of the reason are not logged, because reasons alternate while a store
        // fails.
        let rehearsal = |kind: u64| kind == FailureKind::Rehearsed as u64;
        if rehearsal(former) != rehearsal(kind as u64) {
            self.logged_start.store(0, Ordering::Relaxed);
            self.next_log_at.store(0, Ordering::Relaxed);
        }
        if self.is_log_due() {
            self.update(now, None, failure);
        }
    }

    /// Returns whether the start of the current outage must be logged now. The log interval
    /// prevents a store that fails some calls from logging a start and an end for each of them. An
    /// outage that outlasts the interval is logged when the interval ends.
    fn is_log_due(&self) -> bool {
        self.logged_start.load(Ordering::Relaxed) == 0
            && self.elapsed().0 >= self.next_log_at.load(Ordering::Relaxed)
    }

    /// Records a call that was decided, by the store itself or from what is known of it. Does not end
    /// an outage by itself.
    pub(super) fn record_success(&self, now: Micros, is_by_store: bool) {
        self.recent.record(now, true);
        // Read first, because a store by every call would cost the other threads their cache line.
        if is_by_store && !self.has_decided.load(Ordering::Relaxed) {
            self.has_decided.store(true, Ordering::Relaxed);
        }
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

    /// The store does not know more than the kind.
    const UNTOLD: fn(FailureKind) -> Option<String> = |_| None;

    #[test]
    fn more_than_one_percent_of_undecided_calls_in_a_second_is_an_outage() {
        let tracker = OutageTracker::new(Clock::System);
        assert_eq!(tracker.update(NOW, None, UNTOLD), None);
        for call in 0..99 {
            tracker.record_success(at_millis(call), true);
        }
        tracker.record_fallback(FailureKind::TimedOut, at_millis(100), UNTOLD);
        assert_eq!(tracker.update(at_millis(100), None, UNTOLD), None, "one of a hundred");
        tracker.record_fallback(FailureKind::Overload, at_millis(101), UNTOLD);
        let outage = tracker.update(at_millis(101), None, UNTOLD).unwrap();
        assert_eq!((outage.undecided_percent, outage.kind), (Some(2), FailureKind::Overload));
        let text = "s: 2 % of the last second's calls decided without Redis: overload: Redis could not answer \
                    in time";
        assert!(outage.to_string().ends_with(text), "{outage}");
        assert_eq!(tracker.update(at_millis(1_300), None, UNTOLD), None, "a second later");
        assert_eq!(tracker.calls(FailureKind::TimedOut), 1);
        assert_eq!(tracker.calls(FailureKind::Overload), 1);
    }

    #[test]
    fn an_unavailable_store_is_an_outage_even_without_calls() {
        let tracker = OutageTracker::new(Clock::System);
        let outage = tracker.update(NOW, Some(FailureKind::NotConnected), UNTOLD).unwrap();
        assert!(outage.to_string().ends_with(" s: Redis is not connected"), "{outage}");
        assert!(tracker.start.load(Ordering::Relaxed) > 0);
        assert_eq!(tracker.update(NOW, None, UNTOLD), None);
        assert_eq!(tracker.start.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_outage_names_the_latest_unanswered_call_or_else_why_the_store_is_unavailable() {
        let tracker = OutageTracker::new(Clock::System);
        tracker.record_fallback(FailureKind::TimedOut, NOW, UNTOLD);
        let reason =
            |now, unavailable| tracker.update(now, Some(unavailable), UNTOLD).unwrap().kind;
        assert_eq!(reason(NOW, FailureKind::NotConnected), FailureKind::TimedOut);
        assert_eq!(reason(at_millis(2_000), FailureKind::Rehearsed), FailureKind::Rehearsed);
    }

    #[test]
    fn the_wall_clock_does_not_change_the_duration_of_an_outage() {
        let tracker = OutageTracker::new(Clock::System);
        tracker.record_fallback(FailureKind::TimedOut, NOW, UNTOLD);
        tracker.record_fallback(FailureKind::TimedOut, at_millis(86_400_000), UNTOLD);
        let outage = tracker.update(at_millis(86_400_000), None, UNTOLD).unwrap();
        assert!(outage.duration < Micros::from_secs(3_600), "{outage}");
    }
}
