//! Table of this replica's share of each limit. A share is computed once and then read without a
//! lock.
//!
//! Not here: dividing a limit (`domain::Fraction`), when a share applies (`fallback`).

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::domain::{
    Algorithm, Charge, FixedWindow, Fraction, Hits, Limit, Micros, OnStoreFailure, Rate, Unit,
    Window,
};

/// Number of slots in the table, which takes 64 KiB of pointers. A lookup that finds no share
/// allocates one. This happens on the first call for each limit, on every call with a request
/// override, and repeatedly for limits that use the same slot.
const TABLE_SIZE: usize = 8_192;

/// Table entry: a limit and this replica's share of it.
#[derive(Debug)]
pub(super) struct ShareEntry {
    /// Unscaled limit, whose address is the key of the entry. The entry owns the limit, so that no
    /// other limit can be allocated at this address.
    whole: Arc<Limit>,
    share: Arc<Limit>,
}

/// Limit that this replica enforces when it decides without the remote store.
#[derive(Debug)]
pub(super) enum ReplicaLimit<'a> {
    /// Unscaled limit, because this is the only replica.
    Whole(&'a Arc<Limit>),
    /// Share of the limit that this replica enforces, because there are several replicas.
    Share(Guard<Arc<ShareEntry>>),
}

impl ReplicaLimit<'_> {
    /// Returns the limit to enforce, scaled to this replica's share if there are several replicas.
    pub(super) fn limit(&self) -> &Arc<Limit> {
        match self {
            ReplicaLimit::Whole(limit) => limit,
            ReplicaLimit::Share(entry) => &entry.share,
        }
    }
}

/// Hash table from the address of a limit to this replica's share of it. When two limits collide,
/// the newer entry replaces the older one.
#[derive(Debug)]
pub(super) struct ReplicaLimits {
    fraction: Fraction,
    slots: Box<[ArcSwap<ShareEntry>]>,
}

impl ReplicaLimits {
    /// Creates an empty table. `fraction` is the part of every limit that this replica enforces.
    pub(super) fn new(fraction: Fraction) -> ReplicaLimits {
        let unused = Arc::new(unused_limit());
        let empty = Arc::new(ShareEntry { whole: Arc::clone(&unused), share: unused });
        let slots = if fraction.is_whole() { 0 } else { TABLE_SIZE };
        ReplicaLimits {
            fraction,
            slots: (0..slots).map(|_| ArcSwap::new(Arc::clone(&empty))).collect(),
        }
    }

    /// Returns this replica's share of a limit, computing it if it is not in the table.
    pub(super) fn get<'a>(&self, limit: &'a Arc<Limit>) -> ReplicaLimit<'a> {
        if self.fraction.is_whole() {
            return ReplicaLimit::Whole(limit);
        }
        // Allocations are at least 16 bytes apart. The odd factor spreads addresses over the table.
        let address = Arc::as_ptr(limit) as usize as u64 >> 4;
        let spread = address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let slot = &self.slots[spread as usize % TABLE_SIZE];
        let entry = slot.load();
        if Arc::ptr_eq(&entry.whole, limit) {
            return ReplicaLimit::Share(entry);
        }
        let share = Arc::new(limit.scaled_by(self.fraction));
        let entry = Arc::new(ShareEntry { whole: Arc::clone(limit), share });
        slot.store(Arc::clone(&entry));
        ReplicaLimit::Share(Guard::from_inner(entry))
    }
}

/// Returns a placeholder limit for empty slots. No lookup matches it, because no check uses its
/// address.
fn unused_limit() -> Limit {
    let window = Window::Epoch { length: Micros::SECOND };
    Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits::ZERO, window }),
        rate: Rate { requests_per_unit: 0, unit: Some(Unit::Second), unit_multiplier: 1 },
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Local,
        prepay: false,
        limit_id: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(hits: u64) -> Arc<Limit> {
        let window = Window::Epoch { length: Micros::SECOND };
        let algorithm = Algorithm::FixedWindow(FixedWindow { hits: Hits(hits), window });
        Arc::new(Limit { algorithm, ..unused_limit() })
    }

    #[test]
    fn a_share_is_computed_once_and_belongs_to_its_limit() {
        let shares = ReplicaLimits::new(Fraction::one_of(4));
        let limits: Vec<_> = (1..50_000).map(limit).collect();
        for limit in &limits {
            let own = shares.get(limit);
            assert_eq!(own.limit().capacity(), Fraction::one_of(4).of_hits(limit.capacity()));
            assert!(Arc::ptr_eq(own.limit(), shares.get(limit).limit()), "found again");
        }
    }

    #[test]
    fn a_lone_replica_has_the_limit_itself() {
        let limit = limit(7);
        assert!(Arc::ptr_eq(ReplicaLimits::new(Fraction::WHOLE).get(&limit).limit(), &limit));
    }
}
