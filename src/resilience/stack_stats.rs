//! Statistics of the decisions with a store that may be slow or unavailable.

use std::sync::atomic::AtomicU64;

use crate::store::delivery::UnheardHits;

/// Statistics of a [`Stack`](super::stack::Stack), as totals since startup. [`OutageTracker`](super::outage::OutageTracker) counts the unanswered calls by
/// reason.
#[derive(Debug, Default)]
pub struct StackStats {
    /// Number of checks that were refused with a cached refusal.
    pub cached_refusals: AtomicU64,
    /// Number of calls decided entirely from cached refusals, without calling the remote store.
    pub cached_calls: AtomicU64,
    /// Number of calls answered entirely from prepaid hits, without calling the remote store.
    pub prepaid_calls: AtomicU64,
    /// Number of hits charged in advance.
    pub prepaid_hits: AtomicU64,
    /// Number of prepaid hits that were refunded, because no call spent them.
    pub prepaid_refunded: AtomicU64,
    /// Number of calls that had no time left when they arrived, and of calls that charged a lot or
    /// reserved prepaid hits and were not answered by their deadline.
    pub overruns: AtomicU64,
    /// Number of calls admitted although the remote store did not answer every check.
    pub admitted: AtomicU64,
    /// Number of hits that the remote store may not have charged, although their calls were
    /// admitted. This is an upper bound on the hits admitted beyond the limits.
    pub admitted_hits: AtomicU64,
    /// Number of calls rejected although the remote store did not answer every check.
    pub refused: AtomicU64,
    /// Number of checks refused while the remote store may lack charges, because their hits and
    /// the hits charged by this replica alone exceed the limit.
    pub refused_by_own_charges: AtomicU64,
    /// Number of calls that failed with an error, because the remote store did not answer a check
    /// whose limit has `on_store_failure: error`.
    pub unavailable: AtomicU64,
    /// Number of charges refunded on the remote store, because their call was rejected or failed.
    pub refunded: AtomicU64,
    /// Number of charges whose refund was dropped because too many refunds were in progress. The
    /// hits stay charged until their window ends or their bucket refills.
    pub refunds_lost: AtomicU64,
    /// Hits charged for calls that a task owned and whose callers had left when the answer arrived:
    /// calls that charged a lot or reserved prepaid hits, and those while own charges also counted.
    pub unheard: UnheardHits,
}
