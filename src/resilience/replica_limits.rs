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

/// Number of slots in the table, which takes 64 KiB. A lookup that does not find its limit computes
/// the share and allocates an entry. This happens on the first call for each limit, on every call
/// with a request override, and repeatedly for limits that collide in a slot.
const SLOT_COUNT: usize = 8_192;

/// Table entry: a limit and this replica's share of it.
#[derive(Debug)]
pub(super) struct ShareEntry {
    /// Unscaled limit, whose address is the key of the entry. The entry owns the limit, so that no
    /// other limit can be allocated at this address.
    unscaled_limit: Arc<Limit>,
    scaled_limit: Arc<Limit>,
}

/// Limit that this replica enforces when it decides without the remote store.
#[derive(Debug)]
pub(super) enum ReplicaLimit<'a> {
    /// Unscaled limit, because this is the only replica.
    Unscaled(&'a Arc<Limit>),
    /// Limit scaled to this replica's share, because there are several replicas.
    Scaled(Guard<Arc<ShareEntry>>),
}

impl ReplicaLimit<'_> {
    /// Returns the limit to enforce, scaled to this replica's share if there are several replicas.
    pub(super) fn limit(&self) -> &Arc<Limit> {
        match self {
            ReplicaLimit::Unscaled(limit) => limit,
            ReplicaLimit::Scaled(entry) => &entry.scaled_limit,
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
    /// Creates an empty table. `fraction` is this replica's share of every limit.
    pub(super) fn new(fraction: Fraction) -> ReplicaLimits {
        let unused = Arc::new(placeholder_limit());
        let empty =
            Arc::new(ShareEntry { unscaled_limit: Arc::clone(&unused), scaled_limit: unused });
        let slots = if fraction.is_whole() { 0 } else { SLOT_COUNT };
        ReplicaLimits {
            fraction,
            slots: (0..slots).map(|_| ArcSwap::new(Arc::clone(&empty))).collect(),
        }
    }

    /// Returns this replica's share of a limit. Computes the share if it is not in the table.
    pub(super) fn get<'a>(&self, limit: &'a Arc<Limit>) -> ReplicaLimit<'a> {
        if self.fraction.is_whole() {
            return ReplicaLimit::Unscaled(limit);
        }
        // Allocations are at least 16 bytes apart. The odd factor spreads addresses over the table.
        let address = Arc::as_ptr(limit) as usize as u64 >> 4;
        let spread = address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let slot = &self.slots[spread as usize % SLOT_COUNT];
        let entry = slot.load();
        if Arc::ptr_eq(&entry.unscaled_limit, limit) {
            return ReplicaLimit::Scaled(entry);
        }
        let scaled_limit = Arc::new(limit.scaled_by(self.fraction));
        let entry = Arc::new(ShareEntry { unscaled_limit: Arc::clone(limit), scaled_limit });
        slot.store(Arc::clone(&entry));
        ReplicaLimit::Scaled(Guard::from_inner(entry))
    }
}

/// Returns a placeholder limit for the empty slots of the table. No lookup matches it, because
/// lookups compare addresses, and no check uses this limit.
fn placeholder_limit() -> Limit {
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
        Arc::new(Limit { algorithm, ..placeholder_limit() })
    }

    #[test]
    fn each_limit_gets_its_own_share_from_the_table() {
        let shares = ReplicaLimits::new(Fraction::one_of(4));
        let limits: Vec<_> = (1..50_000).map(limit).collect();
        for limit in &limits {
            let own = shares.get(limit);
            assert_eq!(own.limit().capacity(), Fraction::one_of(4).of_hits(limit.capacity()));
            assert!(Arc::ptr_eq(own.limit(), shares.get(limit).limit()), "found again");
        }
    }

    #[test]
    fn a_single_replica_enforces_the_unscaled_limit() {
        let limit = limit(7);
        assert!(Arc::ptr_eq(ReplicaLimits::new(Fraction::WHOLE).get(&limit).limit(), &limit));
    }
}
