//! Fallback to a local store, so that every call is decided in time even if the remote store does
//! not respond.
//!
//! Calls first go to the remote store. `merge` decides the checks that are not answered: on the
//! local store with this replica's share of the limit, or according to the limit's
//! `on_store_failure`. Every charge on the remote store is also charged to the local store, so
//! that an outage does not start with a fresh burst. During an outage, all replicas together admit
//! at most the limit or one hit each, whichever is larger.
//!
//! Hits admitted locally during an outage are not transferred to the remote store. After an outage,
//! the remote store continues with the hits it had left. A window with one or more outages therefore
//! admits up to twice the limit: once on the remote store and once on the replicas. A process that
//! is starved of CPU causes such outages by itself, because its calls exceed their budget although
//! the store is healthy.
//!
//! If a call is not sent to a healthy store, because the answer would come too late, its hits are
//! charged there afterwards (`late_charges`).
//!
//! While the remote store may lack charges, because it lost its counters or because hits are charged
//! afterwards, this replica's own charges also count (`with_own_charges`).
//!
//! Not here: the calls to the remote store (`stack`), detecting why it does not respond
//! (`store::redis::client`).

mod with_own_charges;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::late_charges::LateCharge;
use super::merge::{LocalChecks, MergeResult, merge};
use super::outage::FallbackReason;
use super::own_charges;
use super::replica_limits::ReplicaLimit;
use super::stack::Stack;
use crate::domain::{
    Accounting, Answer, Answers, Call, Check, ExecutionStatus, Hits, LateFate, Micros, Op,
    OwnedCall, Receipt, Role, Source, Verdict,
};
use crate::store::delivery::{Caller, run_in_task, unanswered};
use crate::store::{LocalStore, Store};

/// Answer to a check that was not sent to the remote store.
const NOT_EXECUTED: Answer = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };

impl<S: Store, L: LocalStore> Stack<S, L> {
    /// Decides a call with [`apply_with_own_charges`](Self::apply_with_own_charges) in a task, so that
    /// the local charges of a call are not kept if its caller leaves.
    pub(super) async fn apply_in_task(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        let (stack, owned) = (Arc::clone(self), OwnedCall::new(call));
        let work = |caller: Caller| async move {
            let checks = owned.checks();
            let answers = stack.apply_with_own_charges(&owned.to_call(&checks)).await;
            caller.deliver(answers);
        };
        match run_in_task(&self.tasks, &self.stats.unheard, work).await {
            Some(answers) => answers,
            // The runtime of a library user has ended, so the local store decides.
            None => {
                let answers = unanswered(call, ExecutionStatus::Unknown, Source::Redis);
                self.settle(call, answers, &[])
            }
        }
    }

    /// Returns the final answers to a call, given the remote store's answers. For each check,
    /// `is_counted` states whether this replica has already recorded the charge as its own. If the
    /// slice is empty, this replica has recorded none of the charges.
    pub(super) fn settle(
        self: &Arc<Self>,
        call: &Call<'_>,
        answers: Answers,
        is_counted: &[bool],
    ) -> Answers {
        if let Some(reason) = fallback_reason(&answers) {
            return self.fall_back(call, answers, reason, is_counted);
        }
        self.outages.record_success(call.now);
        self.mirror(call, &answers.each, |_| true, is_counted);
        answers
    }

    /// Applies the remote store's charges and refunds to two kinds of local counters: those that
    /// enforce this replica's share of each limit, and those that count this replica's own charges
    /// against the full limits. `is_remote` returns whether the remote store answered the check at
    /// an index.
    fn mirror(
        &self,
        call: &Call<'_>,
        answers: &[Answer],
        is_remote: impl Fn(usize) -> bool,
        is_counted: &[bool],
    ) {
        for (at, (check, answer)) in call.checks.iter().zip(answers).enumerate() {
            let Answer::Decided(outcome) = answer else { continue };
            if !is_remote(at) {
                continue;
            }
            let is_counted = is_counted.get(at).is_some_and(|is_counted| *is_counted);
            let charged = outcome.charged;
            match check.op {
                Op::Refund { .. } => {}
                Op::Take { .. } | Op::Peek { .. } if charged > Hits::ZERO => {
                    if check.role != Role::Shadow {
                        self.over_admission.record_charge(charged, check.limit);
                    }
                }
                Op::Take { .. } | Op::Peek { .. } => continue,
            }
            if self.own_charges.has_separate_counters || !is_counted {
                let share = self.replica_limits.get(check.limit);
                let mirrored = Check { limit: share.limit(), role: Role::Shadow, ..*check };
                self.apply_to_local_counter(&mirrored, charged, call.now);
            }
            if self.own_charges.has_separate_counters && !is_counted {
                self.apply_to_own_charges(check, charged, call.now);
            }
        }
    }

    /// Applies a refund, or the charge of a decided check, to the local counter that counts this
    /// replica's own charges against the full limit.
    fn apply_to_own_charges(&self, check: &Check<'_>, charged: Hits, now: Micros) {
        if own_charges::counts_hits(check.limit) {
            self.apply_to_local_counter(&self.own_charges.to_shadow(check), charged, now);
        }
    }

    /// Applies a refund, or the charge of a decided check, to a local counter.
    fn apply_to_local_counter(&self, check: &Check<'_>, charged: Hits, now: Micros) {
        match check.op {
            Op::Refund { .. } => drop(self.local.decide_one(check, now)),
            Op::Take { .. } | Op::Peek { .. } => {
                own_charges::charge(&self.local, check, charged, now)
            }
        }
    }

    /// Decides the given checks on the local store, under this replica's share of each limit.
    fn decide_locally(&self, call: &Call<'_>, local_checks: &LocalChecks) -> Vec<Answer> {
        let shares: SmallVec<[ReplicaLimit<'_>; 4]> = local_checks
            .iter()
            .map(|(at, _)| self.replica_limits.get(call.checks[*at].limit))
            .collect();
        let checks: SmallVec<[Check<'_>; 4]> = local_checks
            .iter()
            .zip(&shares)
            .map(|((at, role), share)| Check {
                limit: share.limit(),
                role: *role,
                ..call.checks[*at]
            })
            .collect();
        let mut each = self.local.decide(&Call { checks: &checks, ..*call });
        for ((at, _), answer) in local_checks.iter().zip(&mut each) {
            if let Answer::Decided(outcome) = answer {
                let check = &call.checks[*at];
                if self.own_charges.has_separate_counters
                    && (check.is_refund() || outcome.charged > Hits::ZERO)
                {
                    self.apply_to_own_charges(check, outcome.charged, call.now);
                }
                // The remote store must never see a receipt of the local store.
                outcome.taken = None;
            }
        }
        each
    }

    /// Returns the final answers to a call with at least one check that the remote store did not
    /// answer.
    fn fall_back(
        self: &Arc<Self>,
        call: &Call<'_>,
        mut answers: Answers,
        reason: FallbackReason,
        is_counted: &[bool],
    ) -> Answers {
        self.outages.record_fallback(reason, call.now);
        if matches!(reason, FallbackReason::Shed | FallbackReason::TimedOut) {
            self.missing_charges.record_local_decision(call.now);
        }
        let is_remote: SmallVec<[bool; 16]> =
            answers.each.iter().map(|answer| answer.outcome().is_some()).collect();
        let is_unsent: SmallVec<[bool; 16]> =
            answers.each.iter().map(|answer| *answer == NOT_EXECUTED).collect();
        let merged = merge(call, &mut answers.each, |checks| self.decide_locally(call, checks));
        let is_admitted = matches!(merged, MergeResult::Decided { admitted: true, .. });
        if !is_admitted
            && call.accounting == Accounting::AllOrNothing
            && let Some(late) = answers.late.take()
        {
            late.settle(LateFate::Refund);
        }
        self.mirror(call, &answers.each, |at| is_remote[at], is_counted);
        let counter = match merged {
            MergeResult::Unavailable { receipts } => {
                self.refund_in_background(receipts);
                &self.stats.unavailable
            }
            MergeResult::Decided { admitted, receipts } => {
                self.refund_in_background(receipts);
                if admitted {
                    self.record_unconfirmed_hits(call, &is_remote);
                }
                if reason == FallbackReason::Shed {
                    self.charge_later(call, &answers.each, &is_unsent, admitted);
                }
                answers.source = match reason {
                    FallbackReason::Shed => Source::Shed,
                    FallbackReason::Unreachable
                    | FallbackReason::TimedOut
                    | FallbackReason::Rehearsed => Source::Local,
                };
                if admitted { &self.stats.admitted } else { &self.stats.refused }
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answers
    }

    /// Records the hits of an admitted call that the remote store may not have charged, because it
    /// did not answer their checks. Ignores shadow checks.
    fn record_unconfirmed_hits(&self, call: &Call<'_>, is_remote: &[bool]) {
        for (check, is_remote) in call.checks.iter().zip(is_remote) {
            let Op::Take { cost } = check.op else { continue };
            if !is_remote && check.role != Role::Shadow {
                self.over_admission.record_unconfirmed_charge(check.limit, call.now);
                self.stats.admitted_hits.fetch_add(cost.0, Ordering::AcqRel);
            }
        }
    }

    /// Charges the hits of unsent checks on the remote store in a background task. `answers` are the
    /// final answers to the call. Concurrency slots are not charged later, because the caller may
    /// have released them by then.
    fn charge_later(
        self: &Arc<Self>,
        call: &Call<'_>,
        answers: &[Answer],
        is_unsent: &[bool],
        admitted: bool,
    ) {
        let each = call.checks.iter().zip(answers).zip(is_unsent);
        let charges = each.filter_map(|((check, answer), is_unsent)| {
            let (Op::Take { cost }, Answer::Decided(outcome)) = (check.op, answer) else {
                return None;
            };
            // Under `on_store_failure: allow`, an admitted check charges no local counter.
            let is_admitted = admitted && outcome.verdict == Verdict::Pass;
            let hits = if is_admitted { cost } else { outcome.charged };
            let is_charged =
                *is_unsent && hits > Hits::ZERO && own_charges::counts_hits(check.limit);
            let limit = Arc::clone(check.limit);
            is_charged.then_some(LateCharge { key: check.key, limit, hits, role: check.role })
        });
        self.add_late_charges(charges, call.now);
    }

    /// Refunds charges on the remote store in a background task, so that the caller does not wait
    /// for the refund.
    fn refund_in_background(self: &Arc<Self>, receipts: Vec<Receipt>) {
        if receipts.is_empty() {
            return;
        }
        let (many, stack) = (receipts.len() as u64, Arc::clone(self));
        let refund = async move { stack.refund(&receipts).await };
        let counter = match self.background_refunds.start(refund) {
            true => &self.stats.refunded,
            false => &self.stats.refunds_lost,
        };
        counter.fetch_add(many, Ordering::Relaxed);
    }
}

/// Returns the reason why the remote store left checks unanswered, or `None` if it answered all of
/// them.
fn fallback_reason(answers: &Answers) -> Option<FallbackReason> {
    let reasons = answers.each.iter().filter_map(|answer| match answer {
        Answer::Unanswered { executed: ExecutionStatus::Unknown } => Some(FallbackReason::TimedOut),
        Answer::Unanswered { executed: ExecutionStatus::NotExecuted } => {
            Some(match answers.source {
                Source::Shed => FallbackReason::Shed,
                // An operator has disabled the store.
                Source::Local => FallbackReason::Rehearsed,
                Source::Memory | Source::Redis | Source::Cached | Source::Policy => {
                    FallbackReason::Unreachable
                }
            })
        }
        Answer::Decided(_) | Answer::NotAsked | Answer::LastKnown { .. } => None,
    });
    reasons.max_by_key(|reason| *reason as u8)
}
