//! Upper bound on the number of hits that this replica has admitted beyond their limits. The bound
//! counts the hits that the remote store did not confirm, and those that it lost together with its
//! counters.
//!
//! All these hits expire together, at the latest of their expiry times, because a single expiry
//! time needs only a few atomics. As a result, the bound may count a hit of a short window for as
//! long as a hit of the longest window, and each new hit can delay the expiry of earlier hits.
//!
//! Not here: determining these hits (`ledger`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Hits, Limit, Micros};

/// Upper bound on the number of hits admitted beyond their limits. Lock-free.
#[derive(Debug, Default)]
pub(super) struct OverAdmission {
    /// Number of hits charged to the remote store since `generation_start` or since the latest loss
    /// of counters, whichever is later.
    charged_in_generation: AtomicU64,
    /// Number of hits charged to the remote store in the previous generation, which ended at
    /// `generation_start`. Excludes hits charged before the latest loss of counters.
    charged_in_previous_generation: AtomicU64,
    /// Start of the current generation, in microseconds since the Unix epoch. Charges are counted
    /// per generation, a period at least as long as the longest charge lifetime.
    generation_start: AtomicU64,
    /// Longest [charge lifetime](Limit::charge_lifetime) of all limits charged so far, in
    /// microseconds.
    lifetime_max: AtomicU64,
    /// Number of hits since startup whose charges the remote store may have lost.
    lost_hits: AtomicU64,
    /// Number of unconfirmed and lost hits that have expired and no longer count towards the upper
    /// bound.
    expired_hits: AtomicU64,
    /// Time at which all unconfirmed and lost hits so far will have expired, in microseconds since
    /// the Unix epoch.
    expires_at: AtomicU64,
}

impl OverAdmission {
    /// Records hits that the remote store has charged, because it may lose them later.
    pub(super) fn record_charge(&self, hits: Hits, limit: &Limit) {
        self.charged_in_generation.fetch_add(hits.0, Ordering::Relaxed);
        self.extend_lifetime(limit);
    }

    /// Extends the common expiry time to cover hits under `limit` that the remote store may not
    /// have charged. Must be called before the hits are added to the total that is passed to
    /// [`update_hits_max`](Self::update_hits_max).
    pub(super) fn record_unconfirmed_charge(&self, limit: &Limit, now: Micros) {
        let lifetime = self.extend_lifetime(limit);
        self.expires_at.fetch_max(now.saturating_add(lifetime).0, Ordering::AcqRel);
    }

    /// Records that the remote store may have lost all charges.
    pub(super) fn record_loss(&self, now: Micros) {
        let present = self.charged_in_generation.swap(0, Ordering::Relaxed);
        let lost =
            self.charged_in_previous_generation.swap(0, Ordering::Relaxed).saturating_add(present);
        if lost > 0 {
            let lifetime = Micros(self.lifetime_max.load(Ordering::Relaxed));
            self.expires_at.fetch_max(now.saturating_add(lifetime).0, Ordering::AcqRel);
            self.lost_hits.fetch_add(lost, Ordering::AcqRel);
        }
    }

    /// Starts a new generation of charges if the current one is at least `lifetime_max` old, and
    /// discards the charges of the previous generation, which can no longer affect any check. Must
    /// be called every second.
    pub(super) fn expire_charges(&self, now: Micros) {
        let start = Micros(self.generation_start.load(Ordering::Relaxed));
        let lifetime = Micros(self.lifetime_max.load(Ordering::Relaxed));
        if now >= start.saturating_add(lifetime) {
            self.generation_start.store(now.0, Ordering::Relaxed);
            let charged = self.charged_in_generation.swap(0, Ordering::Relaxed);
            self.charged_in_previous_generation.store(charged, Ordering::Relaxed);
        }
    }

    /// Removes expired hits from the upper bound on the number of hits admitted beyond their
    /// limits, and returns the bound. `unconfirmed` is the number of hits since startup that the
    /// remote store may not have charged. Must be called every second.
    pub(super) fn update_hits_max(&self, unconfirmed: &AtomicU64, now: Micros) -> u64 {
        // Loaded before `expires_at`, because every thread extends `expires_at` before it adds to
        // the total.
        let total = unconfirmed
            .load(Ordering::Acquire)
            .saturating_add(self.lost_hits.load(Ordering::Acquire));
        if now.0 >= self.expires_at.load(Ordering::Acquire) {
            self.expired_hits.fetch_max(total, Ordering::Relaxed);
        }
        total.saturating_sub(self.expired_hits.load(Ordering::Relaxed))
    }

    /// Returns how long a charge under this limit can affect later checks. Also updates
    /// `lifetime_max`.
    fn extend_lifetime(&self, limit: &Limit) -> Micros {
        let lifetime = limit.charge_lifetime();
        // A load is cheaper than a write, and the maximum hardly ever changes.
        if self.lifetime_max.load(Ordering::Relaxed) < lifetime.0 {
            self.lifetime_max.fetch_max(lifetime.0, Ordering::Relaxed);
        }
        lifetime
    }
}
