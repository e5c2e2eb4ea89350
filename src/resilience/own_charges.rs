//! Counters of everything that this replica has charged, against the full limits.
//!
//! They are counters of the local store. A single replica enforces the full limits locally anyway,
//! so it has them already. With several replicas the local counters only hold this replica's share,
//! and a bucket's share refills more slowly than the whole. So each counter then has a second one
//! beside it, under a key of its own.
//!
//! Not here: when these counters matter (`fallback::after_loss`).

use crate::domain::{Algorithm, Check, CounterKey, Fraction, Hits, Limit, Micros, Op, Role};
use crate::store::LocalStore;

/// Number that turns a counter's identity into that of the second counter beside it. Identities are
/// keyed hashes, so any constant is as good.
const SECOND_COUNTER: u128 = 0x5bd1_e995_9e37_79b9_7f4a_7c15_f39c_c060;

/// Counters of this replica's charges, counted against the full limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnCharges {
    /// Whether these counters are not the ones that decide locally.
    pub(super) has_own_counters: bool,
}

impl OwnCharges {
    /// Creates the counters. `share` is the part of every limit that this replica enforces locally.
    pub(super) fn new(share: Fraction) -> OwnCharges {
        OwnCharges { has_own_counters: !share.is_whole() }
    }

    /// Returns the check of this replica's own charges that belongs to a check of a call.
    pub(super) fn check<'a>(self, check: &Check<'a>) -> Check<'a> {
        let identity = match self.has_own_counters {
            true => check.key.identity ^ SECOND_COUNTER,
            false => check.key.identity,
        };
        Check { key: CounterKey { identity, ..check.key }, role: Role::Shadow, ..*check }
    }
}

/// Returns whether own charges are compared with a limit. A slot of a concurrency limit may be
/// released by another replica, so its charges here say nothing.
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

/// Charges hits to a local counter, up to its limit.
pub(super) fn charge(local: &impl LocalStore, check: &Check<'_>, hits: Hits, now: Micros) {
    let take = |cost| Check { op: Op::Take { cost }, ..*check };
    let here = local.decide_one(&take(hits), now);
    // The charge exceeds the rest of the limit: charge the rest.
    if here.charged.0 == 0 && here.available.0 > 0 {
        local.decide_one(&take(here.available), now);
    }
}
