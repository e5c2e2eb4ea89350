//! Records losses of the remote store's counters, and determines which limits they still affect.
//!
//! Not here: detecting a loss (`store::redis::client`), deciding calls after a loss
//! (`fallback::after_loss`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Limit, Micros};

/// Record of the counter losses that the remote store has reported to this replica.
#[derive(Debug, Default)]
pub(super) struct CounterLosses {
    /// Number of losses since startup, as most recently reported by the remote store.
    count: AtomicU64,
    /// Time at which this replica detected the latest loss, in microseconds since the Unix epoch; 0
    /// if there was none.
    latest_at: AtomicU64,
}

impl CounterLosses {
    /// Records the number of losses that the remote store reports. Returns whether the number has
    /// changed. If several callers report the same change concurrently, only one gets `true`.
    pub(super) fn record(&self, losses: u64, now: Micros) -> bool {
        if self.count.load(Ordering::Acquire) == losses {
            return false;
        }
        // Stored before `count`, so that a thread that reads the new count also reads the new time.
        self.latest_at.fetch_max(now.0, Ordering::AcqRel);
        self.count.swap(losses, Ordering::AcqRel) != losses
    }

    /// Returns whether charges under this limit may still be missing from the remote store, because
    /// the store lost its counters less than one [charge lifetime](Limit::charge_lifetime) ago.
    pub(super) fn affects(&self, limit: &Limit, now: Micros) -> bool {
        let latest = Micros(self.latest_at.load(Ordering::Acquire));
        latest > Micros::ZERO && now < latest.saturating_add(limit.charge_lifetime())
    }
}
