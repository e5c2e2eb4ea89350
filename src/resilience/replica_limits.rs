//! This replica's share of each limit, made once and then found again without a lock.
//!
//! Not here: how large a share is (`domain::Fraction`), who counts against it (`fallback`).

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::domain::{
    Algorithm, Charge, FixedWindow, Fraction, Hits, Limit, Micros, OnStoreFailure, Rate, Unit,
    Window,
};

/// Limits whose shares are kept: 64 KiB of pointers. A larger policy, and every limit that a caller
/// brings along, pays with an allocation for what it does not find.
const SLOTS: usize = 8_192;

/// A limit with what takes its place while the store is away.
#[derive(Debug)]
pub(super) struct Share {
    /// Held, so that its address stays its own.
    whole: Arc<Limit>,
    part: Arc<Limit>,
}

/// What this replica may admit alone.
#[derive(Debug)]
pub(super) enum ReplicaLimit<'a> {
    /// It is the only one.
    Whole(&'a Arc<Limit>),
    /// It is one of several.
    Fraction(Guard<Arc<Share>>),
}

impl ReplicaLimit<'_> {
    /// The limit.
    pub(super) fn limit(&self) -> &Arc<Limit> {
        match self {
            ReplicaLimit::Whole(limit) => limit,
            ReplicaLimit::Fraction(share) => &share.part,
        }
    }
}

/// A table with one place for each limit, found by the limit's address; the latest one stays.
#[derive(Debug)]
pub(super) struct ReplicaLimits {
    part: Fraction,
    slots: Box<[ArcSwap<Share>]>,
}

impl ReplicaLimits {
    /// ReplicaLimits of that part.
    pub(super) fn new(part: Fraction) -> ReplicaLimits {
        let nothing = Arc::new(nothing());
        let nothing = Arc::new(Share { whole: Arc::clone(&nothing), part: nothing });
        let slots = if part.is_whole() { 0 } else { SLOTS };
        ReplicaLimits {
            part,
            slots: (0..slots).map(|_| ArcSwap::new(Arc::clone(&nothing))).collect(),
        }
    }

    /// The share of a limit.
    pub(super) fn of<'a>(&self, limit: &'a Arc<Limit>) -> ReplicaLimit<'a> {
        if self.part.is_whole() {
            return ReplicaLimit::Whole(limit);
        }
        // Neighbours in memory lie 16 bytes apart at least; the product spreads them.
        let address = Arc::as_ptr(limit) as usize as u64 >> 4;
        let spread = address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let slot = &self.slots[spread as usize % SLOTS];
        let held = slot.load();
        if Arc::ptr_eq(&held.whole, limit) {
            return ReplicaLimit::Fraction(held);
        }
        let part = Arc::new(limit.fraction(self.part));
        let share = Arc::new(Share { whole: Arc::clone(limit), part });
        slot.store(Arc::clone(&share));
        ReplicaLimit::Fraction(Guard::from_inner(share))
    }
}

/// What an empty place holds: a limit at an address that nobody else has.
fn nothing() -> Limit {
    let window = Window::Epoch { length: Micros::SECOND };
    Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits::ZERO, window }),
        rate: Rate { requests_per_unit: 0, unit: Some(Unit::Second), unit_multiplier: 1 },
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Local,
        limit_id: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(hits: u64) -> Arc<Limit> {
        let window = Window::Epoch { length: Micros::SECOND };
        let algorithm = Algorithm::FixedWindow(FixedWindow { hits: Hits(hits), window });
        Arc::new(Limit { algorithm, ..nothing() })
    }

    #[test]
    fn a_share_is_made_once_and_is_its_limits_own() {
        let shares = ReplicaLimits::new(Fraction::one_of(4));
        let limits: Vec<_> = (1..50_000).map(limit).collect();
        for limit in &limits {
            let own = shares.of(limit);
            assert_eq!(own.limit().capacity(), Fraction::one_of(4).of_hits(limit.capacity()));
            assert!(Arc::ptr_eq(own.limit(), shares.of(limit).limit()), "found again");
        }
    }

    #[test]
    fn a_lone_replica_has_the_limit_itself() {
        let limit = limit(7);
        assert!(Arc::ptr_eq(ReplicaLimits::new(Fraction::WHOLE).of(&limit).limit(), &limit));
    }
}
