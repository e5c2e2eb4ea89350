//! Decides calls while the remote store may lack charges of this replica: after it lost counters, for
//! example because Redis was restarted empty or because a replica that lagged behind has become the
//! master; and while hits that were admitted locally are still on their way to it.
//!
//! A check must then also pass against this replica's own charges, counted against the full limit.
//! Each check is charged locally before the remote store is called, and refunded if the remote store
//! does not charge it. However many losses occur and however many calls are in flight, each replica
//! therefore admits at most one extra limit's worth of hits.
//!
//! Otherwise, a replica's own charges are not used, because this replica would still refuse calls on
//! a counter that an operator has deleted or another replica has reset.
//!
//! Not here: the counters of this replica's own charges (`own_charges`), how long a limit is
//! affected (`missing_charges`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::super::own_charges::counts_hits;
use super::super::remaining_checks::RemainingChecks;
use super::super::stack::Stack;
use crate::domain::{
    Answer, Answers, Call, Check, Hits, Micros, Outcome, Receipt, Role, Source, Verdict,
};
use crate::store::{LocalStore, Store};

/// Outcome of each check of a call against the hits charged by this replica alone; `None` for
/// checks that are not decided against these hits.
type OwnChargeOutcomes = SmallVec<[Option<Outcome>; 4]>;

impl<S: Store, L: LocalStore> Stack<S, L> {
    /// Records counter losses that the remote store has newly reported.
    pub(in super::super) fn record_new_losses(&self, now: Micros) {
        let losses = self.remote().counter_losses();
        if losses > 0 && self.missing_charges.record_losses(losses, now) {
            self.over_admission.record_loss(now);
        }
    }

    /// Returns whether any check of a call must also pass against the hits charged by this replica
    /// alone, because the remote store may lack charges.
    pub(in super::super) fn may_lack_charges(&self, call: &Call<'_>) -> bool {
        self.missing_charges.may_exist(call.now)
            && call.checks.iter().any(|check| self.must_fit_own_charges(check, call.now))
    }

    fn must_fit_own_charges(&self, check: &Check<'_>, now: Micros) -> bool {
        !check.is_refund()
            && counts_hits(check.limit)
            && self.missing_charges.affect(check.limit, now)
    }

    /// Decides a call in which some checks must pass both on the remote store and against the hits
    /// charged by this replica alone.
    pub(super) async fn apply_with_own_charges(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        let own: OwnChargeOutcomes = call
            .checks
            .iter()
            .map(|check| {
                self.must_fit_own_charges(check, call.now)
                    .then(|| self.local.decide_one(&self.own_charges.to_shadow(check), call.now))
            })
            .collect();
        let mut answers = Answers::new(own.iter().map(refusal_answer).collect(), Source::Cached);
        let refused = own.iter().flatten().filter(|own| own.verdict == Verdict::Refuse).count();
        self.stats.refused_by_own_charges.fetch_add(refused as u64, Ordering::Relaxed);
        let remaining = remaining_checks(call, &own, &answers.each);
        self.send_remaining(call, &remaining, &own, &mut answers).await;
        let is_counted = self.refund_unconfirmed(call, &own, &answers.each).await;
        if !remaining.positions.is_empty() {
            answers = self.settle(call, answers, &is_counted);
        }
        for ((own, is_counted), answer) in own.iter().zip(is_counted).zip(&mut answers.each) {
            if let (Some(own), Answer::Decided(outcome)) = (own, answer) {
                let refunded = if is_counted { Hits::ZERO } else { own.charged };
                let left = Hits(own.available.0.saturating_add(refunded.0));
                outcome.available = outcome.available.min(left);
                outcome.reset_after = outcome.reset_after.max(own.reset_after);
            }
        }
        for (check, answer) in call.checks.iter().zip(&mut answers.each) {
            if *answer == Answer::NotAsked {
                *answer = self.refusals.last_known(check, call.now);
            }
        }
        answers
    }

    /// Sends the remaining checks to the remote store, and adds the results to `answers`.
    async fn send_remaining(
        &self,
        call: &Call<'_>,
        remaining: &RemainingChecks<'_>,
        own: &OwnChargeOutcomes,
        answers: &mut Answers,
    ) {
        if remaining.positions.is_empty() {
            return;
        }
        let rest = Call { checks: &remaining.checks, ..*call };
        let received = self.ask(&rest).await;
        (answers.source, answers.late) = (received.source, received.late);
        for (at, answer) in remaining.positions.iter().zip(received.each) {
            answers.each[*at] = match (&own[*at], answer) {
                (Some(own), Answer::Decided(outcome)) if own.verdict == Verdict::Refuse => {
                    let retry_after = outcome.retry_after.max(own.retry_after);
                    Answer::Decided(Outcome { verdict: Verdict::Refuse, retry_after, ..outcome })
                }
                (_, answer) => answer,
            };
        }
    }

    /// Refunds the local charges of checks that the remote store did not charge. Returns, for each
    /// check, whether its local charge remains.
    async fn refund_unconfirmed(
        &self,
        call: &Call<'_>,
        own: &OwnChargeOutcomes,
        answers: &[Answer],
    ) -> SmallVec<[bool; 4]> {
        let mut receipts = Vec::new();
        let mut is_counted: SmallVec<[bool; 4]> = SmallVec::new();
        for ((check, own), answer) in call.checks.iter().zip(own).zip(answers) {
            let is_charged =
                matches!(answer, Answer::Decided(outcome) if outcome.charged > Hits::ZERO);
            let receipt =
                own.and_then(|own| Receipt::for_check(&self.own_charges.to_shadow(check), &own));
            is_counted.push(is_charged && receipt.is_some());
            if !is_charged {
                receipts.extend(receipt);
            }
        }
        // Of two charges to one counter, the later one is refunded first.
        receipts.reverse();
        if !receipts.is_empty() {
            self.local.refund(&receipts).await;
        }
        is_counted
    }
}

/// Returns the checks to send to the remote store. If checks refused against this replica's own
/// charges already reject an all-or-nothing call, these are only the checks that apply even to a
/// rejected call. Otherwise, these are all checks except the refused ones that charge nothing.
fn remaining_checks<'a>(
    call: &Call<'a>,
    own: &OwnChargeOutcomes,
    answers: &[Answer],
) -> RemainingChecks<'a> {
    let mut remaining = RemainingChecks::new(call, answers);
    for (at, check) in call.checks.iter().enumerate() {
        // Charged although it is refused. Its verdict is already known, so its role is `Shadow`.
        if own[at].is_some_and(|own| own.verdict == Verdict::Refuse) && check.charges_always() {
            remaining.positions.push(at);
            remaining.checks.push(Check { role: Role::Shadow, ..*check });
        }
    }
    remaining
}

/// Returns the refusal if the check was refused against this replica's own charges, otherwise
/// `NotAsked`.
fn refusal_answer(own: &Option<Outcome>) -> Answer {
    match own {
        Some(own) if own.verdict == Verdict::Refuse => {
            Answer::Decided(Outcome { charged: Hits::ZERO, taken: None, ..*own })
        }
        Some(_) | None => Answer::NotAsked,
    }
}
