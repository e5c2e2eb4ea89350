//! Table of this replica's share of each limit. A share is computed once and then read without a
//! lock.
//!
//! Not here: dividing a limit (`domain::Fraction`), when a share applies (`fallback`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::{ArcSwapOption, Guard};

use crate::domain::{Fraction, Limit};

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
    replicas: u32,
    scaled_limit: Arc<Limit>,
}

/// Limit that this replica enforces when it decides without the remote store.
#[derive(Debug)]
pub(super) struct ReplicaLimit<'a> {
    unscaled: &'a Arc<Limit>,
    /// Entry with the limit scaled to this replica's share. `None` if this is the only replica.
    entry: Option<Guard<Option<Arc<ShareEntry>>>>,
}

impl ReplicaLimit<'_> {
    /// Returns the limit to enforce, scaled to this replica's share if there are several replicas.
    pub(super) fn limit(&self) -> &Arc<Limit> {
        let entry = self.entry.as_ref().and_then(|entry| entry.as_ref());
        entry.map_or(self.unscaled, |entry| &entry.scaled_limit)
    }
}

/// Hash table from the address of a limit to this replica's share of it. When two limits collide,
/// the newer entry replaces the older one.
#[derive(Debug)]
pub(super) struct ReplicaLimits {
    /// Number of replicas that share each limit.
    replicas: AtomicU32,
    slots: Box<[ArcSwapOption<ShareEntry>]>,
}

impl ReplicaLimits {
    /// Creates an empty table of one of `replicas` replicas.
    pub(super) fn new(replicas: u32) -> ReplicaLimits {
        let slots = (0..SLOT_COUNT).map(|_| ArcSwapOption::empty()).collect();
        ReplicaLimits { replicas: AtomicU32::new(replicas), slots }
    }

    pub(super) fn replicas(&self) -> u32 {
        self.replicas.load(Ordering::Relaxed)
    }

    /// Changes the number of replicas. Counters keep their state, as after a change of the limit.
    pub(super) fn set_replicas(&self, replicas: u32) {
        self.replicas.store(replicas, Ordering::Relaxed);
    }

    /// Returns this replica's share of every limit.
    pub(super) fn fraction(&self) -> Fraction {
        Fraction::one_of(self.replicas())
    }

    /// Returns this replica's share of a limit. Computes the share if it is not in the table.
    pub(super) fn get<'a>(&self, limit: &'a Arc<Limit>) -> ReplicaLimit<'a> {
        let replicas = self.replicas();
        let fraction = Fraction::one_of(replicas);
        if fraction.is_whole() {
            return ReplicaLimit { unscaled: limit, entry: None };
        }
        // Allocations are at least 16 bytes apart. The odd factor spreads addresses over the table.
        let address = Arc::as_ptr(limit) as usize as u64 >> 4;
        let spread = address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let slot = &self.slots[spread as usize % SLOT_COUNT];
        let mut entry = slot.load();
        let is_current = |entry: &Arc<ShareEntry>| {
            entry.replicas == replicas && Arc::ptr_eq(&entry.unscaled_limit, limit)
        };
        if !entry.as_ref().is_some_and(is_current) {
            let scaled_limit = Arc::new(limit.scaled_by(fraction));
            let unscaled_limit = Arc::clone(limit);
            let new = Some(Arc::new(ShareEntry { unscaled_limit, replicas, scaled_limit }));
            slot.store(new.clone());
            entry = Guard::from_inner(new);
        }
        ReplicaLimit { unscaled: limit, entry: Some(entry) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Micros;
    use crate::domain::fixtures::fixed_window;

    fn limit(hits: u64) -> Arc<Limit> {
        Arc::new(fixed_window(hits, Micros::SECOND))
    }

    #[test]
    fn each_limit_gets_its_own_share_from_the_table() {
        let shares = ReplicaLimits::new(4);
        let limits: Vec<_> = (1..50_000).map(limit).collect();
        for limit in &limits {
            let own = shares.get(limit);
            assert_eq!(own.limit().capacity(), Fraction::one_of(4).of_hits(limit.capacity()));
            assert!(Arc::ptr_eq(own.limit(), shares.get(limit).limit()), "found again");
        }
    }

    #[test]
    fn a_single_replica_enforces_the_unscaled_limit_until_there_are_more() {
        let (limit, shares) = (limit(8), ReplicaLimits::new(1));
        assert!(Arc::ptr_eq(shares.get(&limit).limit(), &limit));
        for replicas in [4, 2, 4] {
            shares.set_replicas(replicas);
            assert_eq!(shares.get(&limit).limit().capacity().0, 8 / u64::from(replicas));
        }
    }
}
