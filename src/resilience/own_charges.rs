//! Counters that count all charges of this replica against the full limits, not against its share.
//!
//! These counters are in the local store. A single replica enforces the full limits locally, so
//! its local counters already serve this purpose. With several replicas, the local counters only
//! enforce this replica's share, and the share of a bucket refills more slowly than the whole
//! bucket. In that case, each counter has a second counter under a separate key.
//!
//! Not here: using these counters (`fallback::with_own_charges`).

use crate::domain::{Algorithm, Check, CounterKey, Fraction, Hits, Limit, Micros, Op, Role};
use crate::store::LocalStore;

/// XOR mask that converts the identity of a counter into the identity of its second counter, which
/// counts this replica's own charges. Identities are keyed hashes, so any nonzero mask works.
const SECOND_COUNTER_MASK: u128 = 0x5bd1_e995_9e37_79b9_7f4a_7c15_f39c_c060;

/// Counters of the hits that this replica alone has charged. They are compared with the full limits,
/// not with this replica's share.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnCharges {
    /// Whether the counters of this replica's own charges are separate from the local counters
    /// that decide calls.
    pub(super) has_separate_counters: bool,
}

impl OwnCharges {
    /// Creates the counters. `share` is the fraction of every limit that this replica enforces
    /// locally.
    pub(super) fn new(share: Fraction) -> OwnCharges {
        OwnCharges { has_separate_counters: !share.is_whole() }
    }

    /// Returns a shadow copy of `check`, which never causes a rejection. Its counter contains only
    /// the hits that this replica has charged.
    pub(super) fn to_shadow<'a>(self, check: &Check<'a>) -> Check<'a> {
        let identity = match self.has_separate_counters {
            true => check.key.identity ^ SECOND_COUNTER_MASK,
            false => check.key.identity,
        };
        Check { key: CounterKey { identity, ..check.key }, role: Role::Shadow, ..*check }
    }
}

/// Returns whether this replica counts its own charges under a limit. Returns false for a
/// concurrency limit, because another replica may release a slot that this replica has charged.
pub(super) fn counts_hits(limit: &Limit) -> bool {
    match limit.algorithm {
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_) => true,
        Algorithm::Concurrency(_) => false,
    }
}

/// Charges `hits` to a local counter. If the limit has fewer hits left, charges only those.
pub(super) fn charge(local: &impl LocalStore, check: &Check<'_>, hits: Hits, now: Micros) {
    let take = |cost| Check { op: Op::Take { cost }, ..*check };
    let here = local.decide_one(&take(hits), now);
    // The charge exceeds the rest of the limit: charge the rest.
    if here.charged.0 == 0 && here.available.0 > 0 {
        local.decide_one(&take(here.available), now);
    }
}
