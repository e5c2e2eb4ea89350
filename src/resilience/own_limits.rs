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
//! Not here: the counters of this replica's own charges, how long a limit is affected (`ledger`).

use std::sync::Arc;

use super::ledger::OwnOutcomes;
use super::remaining_checks::RemainingChecks;
use super::stack::Stack;
use crate::domain::{
    Answer, Answers, Call, Check, ExecutionStatus, FailureKind, Hits, Outcome, OwnedCall, Role,
    Source, Verdict,
};
use crate::store::delivery::{Caller, run_in_task, unanswered};
use crate::store::{LocalStore, Store};

impl<S: Store, L: LocalStore> Stack<S, L> {
    /// Decides a call in which some checks must pass both on the remote store and against the hits
    /// charged by this replica alone. A task does so, so that the local charges of a call are not
    /// kept if its caller leaves.
    pub(super) async fn apply_with_own_charges(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        let (stack, owned) = (Arc::clone(self), OwnedCall::new(call));
        let work = |caller: Caller| async move {
            let checks = owned.checks();
            let answers = stack.decide_with_own_charges(&owned.to_call(&checks)).await;
            caller.deliver(answers);
        };
        match run_in_task(&self.tasks, &self.stats.unheard, work).await {
            Some(answers) => answers,
            // The runtime of a library user has ended, so the local store decides.
            None => {
                let answers = unanswered(call, ExecutionStatus::Unknown, FailureKind::Lost);
                self.settle(call, answers, &[])
            }
        }
    }

    async fn decide_with_own_charges(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        let own = self.ledger.charge_own(call);
        let remaining = remaining_checks(call, &own);
        let mut answers = Answers::new(Vec::new(), Source::Cached);
        let is_asked = !remaining.positions.is_empty();
        if is_asked {
            answers = self.ask(&Call { checks: &remaining.checks, ..*call }).await;
        }
        answers = remaining.complete(answers);
        for (own, answer) in own.iter().zip(&mut answers.each) {
            if let (Some(own), Answer::Decided(outcome)) = (own, answer)
                && own.verdict == Verdict::Refuse
            {
                outcome.verdict = Verdict::Refuse;
                outcome.retry_after = outcome.retry_after.max(own.retry_after);
            }
        }
        let is_counted = self.ledger.confirm_own(call, &own, &answers.each).await;
        if is_asked {
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
        self.refusals.fill_in_last_known(call, &mut answers.each);
        answers
    }
}

/// Returns the checks to send to the remote store. If checks refused against this replica's own
/// charges already reject an all-or-nothing call, these are only the checks that apply even to a
/// rejected call. Otherwise, these are all checks except the refused ones that charge nothing.
fn remaining_checks<'a>(call: &Call<'a>, own: &OwnOutcomes) -> RemainingChecks<'a> {
    let mut remaining = RemainingChecks::new(call, own.iter().map(refusal_answer).collect());
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
