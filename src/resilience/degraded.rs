//! Whether calls are answered without the store, since when and why: one log line when it begins,
//! one when it has ended, and numbers in between.
//!
//! Not here: answering (`fallback`), the names of metrics (`app`).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::Micros;

/// Without a degraded answer for so long, the store is back. A store that fails one call in a
/// hundred is one outage, not a hundred.
const OVER_AFTER: Micros = Micros::from_secs(5);

/// Why a call was not answered by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It could not be asked: no connection, a full queue, an open breaker, a refusal to serve.
    Unreachable,
    /// It was asked and was not heard in time.
    Late,
    /// Too many calls were waiting for it already.
    Shed,
    /// An operator switched it off, to rehearse.
    Rehearsed,
}

impl Reason {
    /// All of them, in the order of the counters.
    pub const ALL: [Reason; 4] =
        [Reason::Unreachable, Reason::Late, Reason::Shed, Reason::Rehearsed];

    /// The word used in metrics and logs.
    pub const fn word(self) -> &'static str {
        match self {
            Reason::Unreachable => "unreachable",
            Reason::Late => "late",
            Reason::Shed => "shed",
            Reason::Rehearsed => "rehearsed",
        }
    }
}

/// An outage as the health detail tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Since when some calls have not been answered by the store.
    pub since: Micros,
    /// When the latest of them was.
    pub latest: Micros,
    /// Why it was not.
    pub reason: Reason,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasted = self.latest.saturating_sub(self.since).ceil_secs();
        write!(f, "degraded for {lasted} s: the store is {}", self.reason.word())
    }
}

/// Calls that were not answered by the store. Atomics, because every such call counts here.
#[derive(Debug, Default)]
pub struct Degraded {
    calls: [AtomicU64; Reason::ALL.len()],
    /// Zero: no outage.
    since: AtomicU64,
    latest: AtomicU64,
    reason: AtomicU64,
}

impl Degraded {
    /// Calls that were not answered by the store, for that reason.
    pub fn calls(&self, reason: Reason) -> u64 {
        self.calls[reason as usize].load(Ordering::Relaxed)
    }

    /// The outage, if there is one.
    pub fn outage(&self, now: Micros) -> Option<Outage> {
        let since = Micros(self.since.load(Ordering::Relaxed));
        let latest = Micros(self.latest.load(Ordering::Relaxed));
        let is_over = since == Micros::ZERO || now.saturating_sub(latest) >= OVER_AFTER;
        let reason = Reason::ALL.get(self.reason.load(Ordering::Relaxed) as usize)?;
        (!is_over).then_some(Outage { since, latest, reason: *reason })
    }

    /// A call was not answered by the store. Says whether an outage began with it.
    pub(super) fn note(&self, reason: Reason, now: Micros) -> bool {
        self.calls[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.latest.fetch_max(now.0, Ordering::Relaxed);
        let former = self.reason.swap(reason as u64, Ordering::Relaxed);
        let began = now.0.max(1);
        let is_first =
            self.since.compare_exchange(0, began, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // A change of reason is told at the first outage only: reasons alternate while a store dies.
        let rehearsal = |reason: u64| reason == Reason::Rehearsed as u64;
        if is_first || rehearsal(former) != rehearsal(reason as u64) {
            tracing::warn!(reason = reason.word(), "answering without the store");
        }
        is_first
    }

    /// A call was answered by the store. One load where there is no outage.
    pub(super) fn answered(&self, now: Micros) {
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
    fn an_outage_lasts_until_five_seconds_without_a_degraded_answer() {
        let degraded = Degraded::default();
        assert_eq!(degraded.outage(NOW), None);
        degraded.note(Reason::Late, NOW);
        let second = NOW.saturating_add(Micros::SECOND);
        degraded.answered(second);
        degraded.note(Reason::Unreachable, second);
        let outage = Outage { since: NOW, latest: second, reason: Reason::Unreachable };
        assert_eq!(degraded.outage(second), Some(outage));
        assert_eq!(outage.to_string(), "degraded for 1 s: the store is unreachable");
        let later = second.saturating_add(OVER_AFTER);
        assert_eq!(degraded.outage(later), None);
        degraded.answered(later);
        degraded.note(Reason::Shed, later);
        assert_eq!(degraded.outage(later).unwrap().since, later);
        assert_eq!((degraded.calls(Reason::Late), degraded.calls(Reason::Shed)), (1, 1));
    }
}
