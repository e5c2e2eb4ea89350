//! Records when the remote store has lost counters, and which limits that still affects.
//!
//! Not here: detecting a loss (`store::redis::client`), what follows from it
//! (`fallback::after_loss`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Limit, Micros};

/// Losses of the remote store's counters that this replica has noticed.
#[derive(Debug, Default)]
pub(super) struct CounterLosses {
    /// Number of losses that the remote store had reported when it was last asked.
    known: AtomicU64,
    /// Time at which the latest loss was noticed, in microseconds since the Unix epoch; 0 if there
    /// was none.
    latest: AtomicU64,
}

impl CounterLosses {
    /// Records the number of losses that the remote store reports. Returns whether there are
    /// new ones; only one of several concurrent callers gets `true`.
    pub(super) fn observe(&self, losses: u64, now: Micros) -> bool {
        if self.known.load(Ordering::Acquire) == losses {
            return false;
        }
        // Before `known`: whoever finds it up to date must also find the time.
        self.latest.fetch_max(now.0, Ordering::AcqRel);
        self.known.swap(losses, Ordering::AcqRel) != losses
    }

    /// Returns whether the remote store may still lack charges under this limit that it lost.
    pub(super) fn affects(&self, limit: &Limit, now: Micros) -> bool {
        let latest = Micros(self.latest.load(Ordering::Acquire));
        latest > Micros::ZERO && now < latest.saturating_add(limit.charge_lifetime())
    }
}
