//! What a call is told whose store did not answer for some or all of its checks.
//!
//! - A check whose rule says `error`: it stays unanswered, and so does the call.
//! - `deny`: it is refused; asking again makes sense after a second.
//! - `allow`: it passes, and nothing is counted.
//! - `local`, and every refund: decided on the local store, together.
//!
//! A check has the say that its role gives it, whoever decided it. If the call is then refused, or
//! answered with an error, what the store had charged for it is refunded; what may have been
//! charged unheard never is.
//!
//! Pure: the local store is handed in as a function.

use smallvec::SmallVec;

use crate::domain::{
    Accounting, Answer, Call, Charge, Check, Hits, Micros, OnStoreFailure, Op, Outcome, Receipt,
    Role, Verdict,
};

/// When to ask again where the store's absence refused: it is looked for every few hundred
/// milliseconds.
const ASK_AGAIN: Micros = Micros::SECOND;

/// A check for the local store: its number in the call, and the say it has there.
pub(super) type Place = (usize, Role);
/// Four, as the matcher's own.
pub(super) type Places = SmallVec<[Place; 4]>;

/// What became of a call, and what to refund to the store that answered.
#[derive(Debug)]
pub(super) enum MergeResult {
    /// A rule wants an error instead of a decision.
    Unavailable { receipts: Vec<Receipt> },
    /// Every check that has a say is decided.
    Decided { admitted: bool, receipts: Vec<Receipt> },
}

/// Settles a call. `local` decides the checks at these places under the call's accounting and gives
/// one answer for each.
pub(super) fn settle(
    call: &Call<'_>,
    each: &mut [Answer],
    local: impl FnOnce(&Places) -> Vec<Answer>,
) -> MergeResult {
    let unanswered = |answer: &Answer| matches!(answer, Answer::Unanswered { .. });
    let errs = |check: &Check<'_>| {
        check.role != Role::Shadow && check.limit.on_store_failure == OnStoreFailure::Error
    };
    let all_or_nothing = call.accounting == Accounting::AllOrNothing;
    if call.checks.iter().zip(&*each).any(|(check, answer)| unanswered(answer) && errs(check)) {
        let receipts = if all_or_nothing { undo(call.checks, each) } else { Vec::new() };
        return MergeResult::Unavailable { receipts };
    }
    let mut places = Places::new();
    for (at, check) in call.checks.iter().enumerate() {
        if !unanswered(&each[at]) {
            continue;
        }
        match check.limit.on_store_failure {
            OnStoreFailure::Local => places.push((at, check.role)),
            _ if matches!(check.op, Op::Refund { .. }) => places.push((at, check.role)),
            OnStoreFailure::Allow => each[at] = Answer::Decided(allowed(check)),
            OnStoreFailure::Deny => each[at] = Answer::Decided(denied()),
            // A shadow check: nobody asks for its answer.
            OnStoreFailure::Error => {}
        }
    }
    for (at, _) in &places {
        each[*at] = Answer::NotAsked;
    }
    let so_far = Tally::of(call.checks, each);
    let pending_quotas = places.iter().any(|(_, role)| *role == Role::Quota);
    if all_or_nothing && (so_far.refused || so_far.no_quota_passes() && !pending_quotas) {
        // Refused already: the rest is not asked, but for what takes effect all the same.
        places.retain(|(at, _)| stands(&call.checks[*at]));
    }
    if so_far.quota_passes {
        for (_, role) in &mut places {
            if *role == Role::Quota {
                *role = Role::Shadow;
            }
        }
    }
    if !places.is_empty() {
        for ((at, _), answer) in places.iter().zip(local(&places)) {
            each[*at] = answer;
        }
    }
    let admitted = Tally::of(call.checks, each).admits();
    let refunded = all_or_nothing && !admitted;
    let receipts = if refunded { undo(call.checks, each) } else { Vec::new() };
    MergeResult::Decided { admitted, receipts }
}

/// What the answers say together.
struct Tally {
    refused: bool,
    quotas: bool,
    quota_passes: bool,
}

impl Tally {
    fn of(checks: &[Check<'_>], each: &[Answer]) -> Tally {
        let mut tally = Tally { refused: false, quotas: false, quota_passes: false };
        for (check, answer) in checks.iter().zip(each) {
            let Answer::Decided(outcome) = answer else { continue };
            let passes = outcome.verdict == Verdict::Pass;
            match check.role {
                Role::Required => tally.refused |= !passes,
                Role::Quota => {
                    tally.quotas = true;
                    tally.quota_passes |= passes;
                }
                Role::Shadow => {}
            }
        }
        tally
    }

    fn no_quota_passes(&self) -> bool {
        self.quotas && !self.quota_passes
    }

    /// The store's contract, 3.
    fn admits(&self) -> bool {
        !self.refused && !self.no_quota_passes()
    }
}

/// Takes effect whatever becomes of the call.
fn stands(check: &Check<'_>) -> bool {
    match check.op {
        Op::Refund { .. } => true,
        Op::Take { .. } => check.limit.charge == Charge::Always,
        Op::Peek => false,
    }
}

/// The answer where the rule lets pass. Nobody knows what is used, so all of it counts as left.
fn allowed(check: &Check<'_>) -> Outcome {
    Outcome {
        verdict: Verdict::Pass,
        charged: Hits::ZERO,
        available: check.limit.capacity(),
        retry_after: None,
        reset_after: Micros::ZERO,
        taken: None,
    }
}

/// The answer where the rule refuses.
fn denied() -> Outcome {
    Outcome {
        verdict: Verdict::Refuse,
        charged: Hits::ZERO,
        available: Hits::ZERO,
        retry_after: Some(ASK_AGAIN),
        reset_after: ASK_AGAIN,
        taken: None,
    }
}

/// Takes back what the store charged to a call that does not pass after all. Only the store's own
/// outcomes have something taken: the local store's have lost it (`fallback`).
fn undo(checks: &[Check<'_>], each: &mut [Answer]) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for (check, answer) in checks.iter().zip(each) {
        let Answer::Decided(outcome) = answer else { continue };
        if stands(check) {
            continue;
        }
        if let Some(receipt) = Receipt::of(check, outcome) {
            receipts.push(receipt);
            *outcome = outcome.refunded(check.limit.capacity());
        }
    }
    receipts
}
