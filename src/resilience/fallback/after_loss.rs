//! Decides calls after the remote store has lost counters, for example because Redis was restarted
//! empty or because a replica that lagged behind has become the master.
//!
//! For one charge lifetime ([`Limit::charge_lifetime`](crate::domain::Limit::charge_lifetime))
//! after a loss, a check must also pass against this replica's own charges, counted against the
//! full limit. Each check is charged locally before the remote store is called, and refunded if the
//! remote store does not charge it. However many losses occur and however many calls are in flight,
//! each replica therefore admits at most one extra limit's worth of hits.
//!
//! A replica's own charges are used only after a loss. Otherwise, this replica would still refuse
//! calls on a counter that an operator has deleted or another replica has reset.
//!
//! Not here: the counters of this replica's own charges (`own_charges`), how long a loss affects a
//! limit (`counter_losses`).

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::super::outage::FallbackReason;
use super::super::own_charges::counts_hits;
use super::super::remaining_checks::RemainingChecks;
use super::Fallback;
use crate::domain::{
    Answer, Answers, Call, Check, Hits, Micros, Outcome, Receipt, Role, Source, Verdict,
};
use crate::store::{LocalStore, Store};

/// Outcomes of a call's checks against this replica's own charges; `None` for checks to which these
/// charges do not apply.
type OwnOutcomes = SmallVec<[Option<Outcome>; 4]>;

impl<S: Store, L: LocalStore> Fallback<S, L> {
    /// Records new counter losses. Returns whether the remote store has ever lost counters. If the
    /// store never has, the call costs only one atomic read.
    pub(super) fn notice_losses(&self, now: Micros) -> bool {
        let losses = self.remote.counter_losses();
        if losses > 0 && self.losses.observe(losses, now) {
            self.over_admission.record_loss(now);
        }
        losses > 0
    }

    /// Returns whether any check of a call must also pass against this replica's own charges.
    pub(super) fn is_affected_by_loss(&self, call: &Call<'_>) -> bool {
        call.checks.iter().any(|check| self.must_fit_own_charges(check, call.now))
    }

    fn must_fit_own_charges(&self, check: &Check<'_>, now: Micros) -> bool {
        !check.is_refund() && counts_hits(check.limit) && self.losses.affects(check.limit, now)
    }

    /// Decides a call in which some checks must also pass against this replica's own charges.
    pub(super) async fn apply_after_loss(&self, call: &Call<'_>) -> Answers {
        let own: OwnOutcomes = call
            .checks
            .iter()
            .map(|check| {
                self.must_fit_own_charges(check, call.now)
                    .then(|| self.local.decide_one(&self.own_charges.to_shadow(check), call.now))
            })
            .collect();
        let mut answers =
            Answers { each: own.iter().map(refusal_answer).collect(), source: Source::Cached };
        let refused = own.iter().flatten().filter(|own| own.verdict == Verdict::Refuse).count();
        self.stats.refused_after_loss.fetch_add(refused as u64, Ordering::Relaxed);
        let remaining = remaining_checks(call, &own, &answers.each);
        let reason = self.send_remaining(call, &remaining, &own, &mut answers).await;
        let is_counted = self.refund_unconfirmed(call, &own, &answers.each).await;
        if !remaining.positions.is_empty() {
            answers = self.complete(call, answers, reason, &is_counted);
        }
        for ((own, is_counted), answer) in own.iter().zip(is_counted).zip(&mut answers.each) {
            if let (Some(own), Answer::Decided(outcome)) = (own, answer) {
                let refunded = if is_counted { Hits::ZERO } else { own.charged };
                let left = Hits(own.available.0.saturating_add(refunded.0));
                outcome.available = outcome.available.min(left);
                outcome.reset_after = outcome.reset_after.max(own.reset_after);
            }
        }
        answers
    }

    /// Sends the remaining checks to the remote store, and adds the answers to `answers`. Returns
    /// the reason if some checks were not answered, otherwise `None`.
    async fn send_remaining(
        &self,
        call: &Call<'_>,
        remaining: &RemainingChecks<'_>,
        own: &OwnOutcomes,
        answers: &mut Answers,
    ) -> Option<FallbackReason> {
        if remaining.positions.is_empty() {
            return None;
        }
        let rest = Call { checks: &remaining.checks, ..*call };
        let (received, reason) = self.call_remote(&rest).await;
        answers.source = received.source;
        for (at, answer) in remaining.positions.iter().zip(received.each) {
            answers.each[*at] = match (&own[*at], answer) {
                (Some(own), Answer::Decided(outcome)) if own.verdict == Verdict::Refuse => {
                    let retry_after = outcome.retry_after.max(own.retry_after);
                    Answer::Decided(Outcome { verdict: Verdict::Refuse, retry_after, ..outcome })
                }
                (_, answer) => answer,
            };
        }
        reason
    }

    /// Refunds this replica's own charges for checks that the remote store did not charge. Returns,
    /// for each check, whether a charge of this replica remains.
    async fn refund_unconfirmed(
        &self,
        call: &Call<'_>,
        own: &OwnOutcomes,
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

/// Returns the checks to send to the remote store. If this replica's own charges already reject an
/// all-or-nothing call, these are the checks that change their counters even if the call is
/// rejected. Otherwise, these are the checks that are not refused so far, and the refused checks
/// that are charged nevertheless.
fn remaining_checks<'a>(
    call: &Call<'a>,
    own: &OwnOutcomes,
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

/// Returns a refusal if a check was refused against this replica's own charges, otherwise
/// `NotAsked`.
fn refusal_answer(own: &Option<Outcome>) -> Answer {
    match own {
        Some(own) if own.verdict == Verdict::Refuse => {
            Answer::Decided(Outcome { charged: Hits::ZERO, taken: None, ..*own })
        }
        Some(_) | None => Answer::NotAsked,
    }
}
