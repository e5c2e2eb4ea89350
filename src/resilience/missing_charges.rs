//! Records why the remote store may lack charges of this replica, and determines which limits this
//! still affects.
//!
//! Not here: detecting a loss of counters (`store::redis::client`), deciding calls while charges
//! may be missing (`own_limits`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Limit, Micros};

/// Time for which charges are considered missing after a call was decided locally although the
/// store is healthy. The charges arrive at the store within milliseconds.
const LATE_CHARGES_LIFETIME: Micros = Micros::SECOND;

/// Record of the events after which the remote store may lack charges of this replica. Times are in
/// microseconds since the Unix epoch, and 0 if there was no such event.
#[derive(Debug, Default)]
pub(super) struct MissingCharges {
    /// Number of counter losses since startup, as most recently reported by the remote store.
    losses: AtomicU64,
    /// Time at which this replica detected the latest loss of counters.
    lost_at: AtomicU64,
    /// Time of the latest call that was decided locally although the store is healthy.
    decided_locally_at: AtomicU64,
}

impl MissingCharges {
    /// Records the number of counter losses that the remote store reports. Returns whether the
    /// number has changed. If several callers report the same change concurrently, only one gets
    /// `true`.
    pub(super) fn record_losses(&self, losses: u64, now: Micros) -> bool {
        if self.losses.load(Ordering::Acquire) == losses {
            return false;
        }
        // Stored before `losses`, so that a thread that reads the new number also reads the new
        // time.
        self.lost_at.fetch_max(now.0, Ordering::AcqRel);
        self.losses.swap(losses, Ordering::AcqRel) != losses
    }

    /// Records that a call was decided locally although the store is healthy.
    pub(super) fn record_local_decision(&self, now: Micros) {
        self.decided_locally_at.store(now.0, Ordering::Release);
    }

    /// Returns whether charges of any limit may be missing. Costs two atomic reads.
    pub(super) fn may_exist(&self, now: Micros) -> bool {
        self.lost_at.load(Ordering::Acquire) > 0 || self.are_charges_late(now)
    }

    /// Returns whether charges under this limit may be missing from the remote store: because the
    /// store lost its counters less than one [charge lifetime](Limit::charge_lifetime) ago, or
    /// because charges are on their way.
    pub(super) fn affect(&self, limit: &Limit, now: Micros) -> bool {
        let lost = Micros(self.lost_at.load(Ordering::Acquire));
        let is_lost = lost > Micros::ZERO && now < lost.saturating_add(limit.charge_lifetime());
        is_lost || self.are_charges_late(now)
    }

    fn are_charges_late(&self, now: Micros) -> bool {
        let latest = self.decided_locally_at.load(Ordering::Acquire);
        // The difference is absolute, because the clock may step back.
        now.0.abs_diff(latest) < LATE_CHARGES_LIFETIME.0
    }
}
