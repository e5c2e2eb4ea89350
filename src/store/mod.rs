//! Where hits are counted: the [`Store`] trait with its contract, and its implementations.
//!
//! Not here: policy, gRPC, what an answer means for the caller (`decide`), deadlines and fallbacks
//! (`resilience`).
//!
//! # The contract
//!
//! `tests/it/store_contract/` runs one list of cases against every store and quotes these numbers.
//!
//! 1. **One call, one instant.** All checks of a call are decided and written as if no other call
//!    ran in between (on a cluster: all checks that share a tag).
//! 2. **Refunds first.** `Op::Refund` is applied before anything else, in order, whatever
//!    becomes of the call. It passes, charges nothing, never lifts a counter above its capacity,
//!    and has no effect on a counter that does not exist.
//! 3. **Admission.** A call is admitted iff every `Required` check passes and, if it has `Quota`
//!    checks, at least one of those does. `Shadow` checks have no say.
//! 4. **All or nothing.** Under that accounting a refused call charges nothing at all; an admitted
//!    call charges every check that passes, and none that refuses.
//!    Where some checks are unanswered and none refuses, what the others charged stands: whoever
//!    decides in the silent ones' place refunds it by receipt if the call is then refused.
//! 5. **Independent.** Under that accounting every check that passes is charged, admitted or not.
//! 6. **A refusal is free.** A refusing check is never charged and writes nothing (but the clamp of
//!    15 and, for buckets, of 14: unwritten, it would be clamped anew at every look, and no wait
//!    would be honest).
//! 7. **Always.** `Charge::Always` is the one exception to 3 to 6: its hits are counted even beyond
//!    the limit and whatever becomes of the call, up to one more capacity of debt (windows: up to
//!    `u32::MAX`); its verdict is that of any check, given before the charge.
//! 8. **A peek** asks whether one more hit would pass and takes nothing.
//! 9. **The same counter twice** in one call: the later check sees the earlier one's charge (which
//!    it would not keep if the call is refused).
//! 10. **Too much at once.** A cost above the capacity, and any cost on a limit of 0, is refused,
//!     consumes nothing and has no retry-after.
//! 11. **Honest waits.** On a refusal `retry_after` is the shortest wait after which the same check
//!     alone passes; one tick less and it is refused again.
//! 12. **Reset.** `reset_after` is the time until nothing is used any more: a window's end, or the
//!     time until the bucket is full (zero for a full one).
//! 13. **Available** is what single hits could be taken next, after this call; rounded down. It and
//!     `reset_after` tell the counter as the whole call leaves it; `retry_after` is what the check
//!     met when it was refused (charged always: after that charge).
//! 14. **A changed limit** meets the old counter: windows keep their count, buckets keep the share
//!     of debt; both are clamped to the new capacity.
//! 15. **A clock that steps back** counts as one that stands still, and refills nothing twice; a
//!     state from the far future is clamped to a full debt, so that no counter freezes. Far is: a
//!     window that begins later than one window from now; a bucket's debt more than one second
//!     beyond a full one.
//! 16. **Receipts.** `refund` returns what a receipt says, once: into its own window if that is
//!     still the current or the previous one; into a bucket less what can have refilled since (by
//!     the store's clock; a store without one takes the time of its latest call).
//! 17. **Everything ends.** A counter is dropped no later than an absent one means the same, and
//!     never before.

use std::future::Future;

use crate::domain::{Answer, Answers, Call, Check, Micros, Outcome, Receipt};

pub mod current_trace;
pub mod memory;
pub mod redis;

/// Counts hits. The module's documentation is the contract.
pub trait Store: Send + Sync + 'static {
    /// Decides a call. There is one answer per check, in order.
    ///
    /// Never fails: what could not be asked is `Answer::Unanswered`.
    fn apply(&self, call: &Call<'_>) -> impl Future<Output = Answers> + Send;

    /// Returns charges to their counters (contract, 16). Sent once; what is lost only makes the
    /// counter stricter until it refills.
    fn refund(&self, receipts: &[Receipt]) -> impl Future<Output = ()> + Send;
}

/// A store within this process: the same contract, and nobody waits for it. What stands behind a
/// store that may be slow or gone.
pub trait LocalStore: Store {
    /// Decides a call: one answer per check, in order; every one is decided.
    fn answer(&self, call: &Call<'_>) -> Vec<Answer>;

    /// Decides one check that is a call of its own, without an allocation for its answer.
    fn answer_one(&self, check: &Check<'_>, now: Micros) -> Outcome;
}
