//! Counter stores: the [`Store`] trait with its contract, and the memory and Redis stores.
//!
//! Not here: policy, gRPC, the response to the caller (`decide`), deadlines and fallback
//! (`resilience`).
//!
//! # The contract
//!
//! `tests/it/store_contract/` runs the same test cases against every store and refers to these
//! clauses by number.
//!
//! 1. **Atomic.** All checks of a call are decided and written at one instant, isolated from other
//!    calls. (On a cluster: all checks that share a hash tag and, if node scripts are used, all
//!    checks on one node.)
//! 2. **Refunds first.** `Op::Refund` is applied before all other operations, in order, even if the
//!    call is rejected. A refund passes, charges nothing, never lifts a counter above its capacity,
//!    and has no effect on a counter that does not exist.
//! 3. **Admission.** A call is admitted iff every `Required` check passes and, if it has `Quota`
//!    checks, all checks of at least one quota group pass. `Shadow` checks have no effect on
//!    admission.
//! 4. **All or nothing.** Under `Accounting::AllOrNothing` a rejected call charges nothing; an
//!    admitted call charges every check that passes, and none that refuses. If some checks are
//!    unanswered and none refuses, the charges of the answered checks are kept. If the fallback
//!    then rejects the call, it refunds those charges by receipt.
//! 5. **Independent.** Under `Accounting::Independent` every check that passes is charged, whether
//!    or not the call is admitted.
//! 6. **Refusals are free.** A check that refuses is never charged and writes nothing, except for
//!    blocks (clause 18) and the clamps of clauses 14 (buckets) and 15. An unwritten clamp would be repeated on every
//!    call, and the reported `retry_after` would never be reached. A peek writes them, too.
//! 7. **Always.** `Charge::Always` is the only exception to clauses 3 to 6: its hits are charged
//!    even beyond the limit and even if the call is rejected, up to twice the capacity (windows: up
//!    to `u32::MAX`). The verdict is decided before the charge, as for any other check.
//! 8. **Peeks.** A peek reports whether one more hit would pass, and charges nothing.
//! 9. **Repeated counters.** If two checks of a call use the same counter, the later check sees the
//!    charge of the earlier one. A rejected call undoes both.
//! 10. **Excessive cost.** A cost above the capacity, and any cost on a limit of 0, is refused
//!     without a charge and without `retry_after`.
//! 11. **Exact waits.** On a refusal, `retry_after` is the shortest wait after which the same check
//!     passes if no other call charges the counter. One tick earlier, the check is refused. (A tick
//!     is 1 µs, or longer for sliding windows of a minute or more.)
//! 12. **Reset.** `reset_after` is the time until the counter is equivalent to an unused one: until
//!     its window ends, until its hits no longer count in any sliding window, or until its bucket
//!     is full (zero for a full bucket).
//! 13. **Available** is the number of single hits that could be charged next, rounded down.
//!     `available` and `reset_after` describe the counter after the whole call. `retry_after`
//!     describes the counter at the moment of the refusal (for `Charge::Always`: after that
//!     charge).
//! 14. **Changed limits.** A counter survives a change of its limit's numbers, and may be that of
//!     several limits at once: of a rule, of a request with a lower limit, of a replica that scales
//!     the rule down. A window or log keeps all hits counted, and a refund subtracts from what is
//!     stored, so that hits above a lower limit are given back first. A bucket keeps the time at
//!     which it is full. A take or peek clamps a larger debt than a used-up bucket of this limit, of
//!     the limit that it is a fraction of, or of any other limit that a request can bring, can have,
//!     because it looks like a state from the far future (clause 15); a refund does not. A hybrid keeps the hits that are left, at most as many
//!     as the limit at the last charge or refund has.
//! 15. **Clock steps back.** While the clock is behind the time at which a counter was last
//!     written, the counter's time does not advance, so nothing refills twice. A state from the far
//!     future is clamped, so that no counter freezes: a bucket whose debt exceeds its maximum debt
//!     by more than one second of refill, and a window that starts more than one window length from
//!     now.
//! 16. **Receipts.** `refund` returns the hits of a receipt to the counter, once. For a window, the
//!     hits return to the window that they were charged to, if that window is still the current or
//!     the previous one. For a bucket, all hits return except those that may have refilled since
//!     the charge (by the store's clock; a store without a clock uses the time of its latest call).
//! 17. **Expiry.** A counter expires once a missing counter is equivalent to it, and never earlier.
//! 18. **Blocks.** A check that [may start a block](Check::starts_block) and refuses while none is in
//!     force blocks its key for the length of its limit's blocks, even if the call is rejected or
//!     undone. Until then every check of the key under a limit with `block`, also of the same call,
//!     refuses and charges nothing but hits of clause 7; `retry_after` is at least the time until
//!     the end, and nothing is available. A refund leaves a block, [`Op::RESET`](crate::domain::Op)
//!     lifts it.

use std::future::Future;

use crate::domain::{Answer, Answers, Call, Check, FailureKind, Micros, Outcome, Receipt};

#[cfg(feature = "redis")]
pub mod current_trace;
#[cfg(feature = "redis")]
pub mod delivery;
pub mod memory;
#[cfg(feature = "redis")]
pub(crate) mod owned_tasks;
#[cfg(feature = "redis")]
pub mod redis;

/// Store of counters that decides calls. The module documentation defines the contract.
pub trait Store: Send + Sync + 'static {
    /// Decides a call. Returns one answer per check, in the order of the checks.
    ///
    /// Never fails: a check that could not be decided is `Answer::Unanswered`.
    fn apply(&self, call: &Call<'_>) -> impl Future<Output = Answers> + Send;

    /// Refunds charges to their counters (clause 16 of the module documentation). Each refund is
    /// sent at most once. If a refund is lost, the counter keeps its hits until they expire or
    /// refill.
    fn refund(&self, receipts: &[Receipt]) -> impl Future<Output = ()> + Send;

    /// Returns the server and the text of the latest failure, with advice for the operator, if it is of
    /// this kind or, for calls that were not sent, of any kind. Returns `None` if there was none.
    fn failure(&self, kind: FailureKind) -> Option<String> {
        let _ = kind;
        None
    }

    /// Returns the number of times that the store may have lost counters, for example because a
    /// server was restarted. Must be cheap, because this method runs for every call.
    fn counter_losses(&self) -> u64 {
        0
    }

    /// Returns a number that changes whenever a connection to a server is lost, or a server may
    /// have lost counters. Hits that were prepaid before the change must not be spent after it.
    /// Must be cheap, because this method runs for every call on a prepaid counter.
    fn session(&self) -> u64 {
        0
    }

    /// Returns whether the store may refuse the check because of hits that another call has charged
    /// and is about to refund. A retry may then pass, so the refusal cache keeps such a refusal
    /// only briefly, until a second refusal confirms it.
    fn has_transient_refusals(&self, check: &Check<'_>) -> bool {
        let _ = check;
        false
    }
}

/// Store in this process's memory, which answers without network access. It takes over when a
/// remote store is slow or unavailable, and fulfills the same contract.
pub trait LocalStore: Store {
    /// Decides a call. Returns one [`Answer::Decided`] per check, in the order of the checks.
    fn decide(&self, call: &Call<'_>) -> Vec<Answer>;

    /// Decides a call with a single check. Unlike [`decide`](Self::decide), does not allocate a
    /// list of answers.
    fn decide_one(&self, check: &Check<'_>, now: Micros) -> Outcome;

    /// Blocks the key of a check, whose limit has `block`, for `left` from `now` on.
    fn block(&self, check: &Check<'_>, left: Micros, now: Micros);
}

/// Store that all replicas share, such as Redis. Reports the status of its servers and its
/// statistics to operators.
pub trait SharedStore: Store {
    /// Status of one server of the store, as the debug port and the metrics report it.
    type Node;

    /// Returns the status of each server that currently holds counters.
    fn nodes(&self) -> Vec<Self::Node>;

    /// Waits until every server is connected. Called only at startup, never for a request.
    fn wait_until_connected(&self) -> impl Future<Output = ()> + Send;

    /// Waits until the background tasks of the store have ended and every command that it has queued
    /// is answered. Called only at shutdown, after the last call.
    fn wait_until_idle(&self) -> impl Future<Output = ()> + Send;

    /// Returns whether every server accepts calls: each server has been connected at least once,
    /// and no circuit breaker is open.
    fn is_available(&self) -> bool;
}
