//! Merges the remote store's answers to a call, some of which are missing, with local decisions.
//!
//! For an unanswered check, the limit's `on_store_failure` applies:
//!
//! - `error`: the check stays unanswered, and the whole call fails with an error.
//! - `deny`: the check is refused, with a `retry_after` of one second.
//! - `allow`: the check passes, and nothing is charged.
//! - `local`: the check is decided on the local store.
//!
//! An unanswered refund or settle under `deny` or `allow`, or a shadow one under `error`, is applied to
//! the local store instead.
//!
//! The call is then admitted or rejected as usual, regardless of which store answered. If it is
//! rejected or fails, the remote store's charges are refunded. Charges whose answer was lost are
//! not refunded, because they may not exist.
//!
//! This module is pure: the caller passes the local store as a function.

use smallvec::SmallVec;

use crate::domain::{
    Admission, Answer, Call, Check, Micros, OnStoreFailure, Outcome, Receipt, Role,
};

/// Wait reported as `retry_after` for a check that is refused because the store is unavailable.
/// One second is sufficient, because the store is probed several times per second.
const DENY_RETRY_AFTER: Micros = Micros::SECOND;

/// Checks for the local store to decide. Each is a pair of the check's index in the call and its
/// role in the local decision. Up to four are stored without a heap allocation.
pub(super) type LocalChecks = SmallVec<[(usize, Role); 4]>;

/// Result of merging the remote store's answers to a call with local decisions.
#[derive(Debug)]
pub(super) struct MergeResult {
    /// Whether the call is admitted. Every check then has a result, except possibly shadow checks
    /// and, if the call is rejected, the checks that were skipped. `None` if the call fails, because
    /// the remote store did not answer a check whose limit has `on_store_failure: error`.
    pub(super) is_admitted: Option<bool>,
    /// Charges that the remote store must refund.
    pub(super) receipts: Vec<Receipt>,
}

/// Decides the checks that the remote store did not answer, and then the call itself. `local`
/// applies the given checks to the local store and returns one answer per check.
pub(super) fn merge(
    call: &Call<'_>,
    answers: &mut [Answer],
    local: impl FnOnce(&LocalChecks) -> Vec<Answer>,
) -> MergeResult {
    let is_unanswered = |answer: &Answer| matches!(answer, Answer::Unanswered { .. });
    let wants_error = |check: &Check<'_>| {
        check.role != Role::Shadow && check.limit.on_store_failure == OnStoreFailure::Error
    };
    let accounting = call.accounting;
    let refund =
        |answers: &mut [Answer]| Receipt::for_rejected_call(call.checks, accounting, answers);
    let mut each = call.checks.iter().zip(&*answers);
    if each.any(|(check, answer)| is_unanswered(answer) && wants_error(check)) {
        return MergeResult { is_admitted: None, receipts: refund(answers) };
    }
    let mut local_checks = LocalChecks::new();
    for (at, (check, answer)) in call.checks.iter().zip(&mut *answers).enumerate() {
        if !is_unanswered(answer) {
            continue;
        }
        match check.limit.on_store_failure {
            OnStoreFailure::Allow if !check.comes_first() => {
                // The used hits are unknown, so the whole capacity counts as available.
                *answer = Answer::Decided(Outcome::pass(check.limit.capacity()));
            }
            OnStoreFailure::Deny if !check.comes_first() => {
                *answer = Answer::Decided(Outcome::refuse_for(DENY_RETRY_AFTER));
            }
            // This can only be a shadow check, whose answer has no effect.
            OnStoreFailure::Error if !check.comes_first() => {}
            OnStoreFailure::Local
            | OnStoreFailure::Allow
            | OnStoreFailure::Deny
            | OnStoreFailure::Error => {
                local_checks.push((at, check.role));
                *answer = Answer::NotAsked;
            }
        }
    }
    if Admission::from_answers(call.checks, answers).is_rejected() {
        local_checks.retain(|(at, _)| call.checks[*at].applies_when_rejected(accounting));
    }
    // The local store does not see the other checks, and would decide quota checks without them.
    let admission = Admission::from_answers(call.checks, answers);
    for (_, role) in &mut local_checks {
        *role = admission.remaining_role(*role);
    }
    if !local_checks.is_empty() {
        for ((at, _), answer) in local_checks.iter().zip(local(&local_checks)) {
            answers[*at] = answer;
        }
    }
    let is_admitted = !Admission::from_answers(call.checks, answers).is_rejected();
    let receipts = if is_admitted { Vec::new() } else { refund(answers) };
    MergeResult { is_admitted: Some(is_admitted), receipts }
}
