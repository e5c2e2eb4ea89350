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
//! charged there afterwards.
//!
//! Not here: the calls to the remote store (`stack`), what it lacks (`ledger`), detecting why it does
//! not respond (`store::redis::client`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::background_refunds::start_refund;
use super::late_charges::LateCharge;
use super::merge::{LocalChecks, MergeResult, merge};
use super::stack::Stack;
use crate::domain::{
    Accounting, Algorithm, Answer, Answers, Call, Check, ExecutionStatus, FailureKind, Hits,
    LateFate, Op, Receipt, Source, Verdict,
};
use crate::store::{LocalStore, Store};

/// Answer to a check that was not sent to the remote store.
const NOT_EXECUTED: Answer = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };

/// Answer to a check that the remote store may have charged.
const UNKNOWN: Answer = Answer::Unanswered { executed: ExecutionStatus::Unknown };

impl<S: Store, L: LocalStore> Stack<S, L> {
    /// Returns the final answers to a call, given the remote store's answers. For each check,
    /// `is_counted` states whether this replica has already recorded the charge as its own. If the
    /// slice is empty, this replica has recorded none of the charges.
    pub(super) fn settle(
        self: &Arc<Self>,
        call: &Call<'_>,
        answers: Answers,
        is_counted: &[bool],
    ) -> Answers {
        if let Some(failure) = failure_kind(&answers) {
            return self.fall_back(call, answers, failure, is_counted);
        }
        self.outages.record_success(call.now, answers.source == Source::Redis);
        self.ledger.mirror(call, &answers.each, |_| true, is_counted);
        answers
    }

    /// Returns the final answers to a call with at least one check that the remote store did not
    /// answer.
    fn fall_back(
        self: &Arc<Self>,
        call: &Call<'_>,
        mut answers: Answers,
        failure: FailureKind,
        is_counted: &[bool],
    ) -> Answers {
        self.outages.record_fallback(failure, call.now, |kind| self.remote.failure(kind));
        if failure.is_overload() || answers.each.contains(&UNKNOWN) {
            self.ledger.missing.record_local_decision(call.now);
        }
        let received = answers.each.clone();
        let is_remote = |at: usize| received[at].outcome().is_some();
        // A shed call is no decision about its key.
        let may_block = !failure.is_overload();
        let decide_locally =
            |checks: &LocalChecks| self.ledger.decide_locally(call, checks, may_block);
        let MergeResult { is_admitted, receipts } = merge(call, &mut answers.each, decide_locally);
        if is_admitted != Some(true)
            && let Some(late) = answers.late.take()
        {
            late.settle(LateFate::Refund);
        }
        self.ledger.mirror(call, &answers.each, is_remote, is_counted);
        self.refund_in_background(receipts);
        let counter = match is_admitted {
            Some(true) => &self.stats.admitted,
            Some(false) => &self.stats.refused,
            None => &self.stats.unavailable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let Some(is_admitted) = is_admitted else { return answers };
        if is_admitted {
            self.ledger.record_unconfirmed(call, is_remote);
        }
        answers.local_share = self.ledger.shares.fraction();
        answers.source = if failure.is_overload() {
            self.charge_later(call, &answers.each, &received, is_admitted);
            Source::Shed
        } else {
            Source::Local
        };
        answers
    }

    /// Charges the hits of unsent checks on the remote store in a background task. `answers` are the
    /// final answers to the call, and `received` those of the remote store. Concurrency slots are not
    /// charged later, because the caller may have released them by then.
    fn charge_later(
        self: &Arc<Self>,
        call: &Call<'_>,
        answers: &[Answer],
        received: &[Answer],
        is_admitted: bool,
    ) {
        let each = call.checks.iter().zip(answers).zip(received);
        let charges = each.filter_map(|((check, answer), received)| {
            let Answer::Decided(outcome) = answer else { return None };
            // Under `on_store_failure: allow`, an admitted check charges no local counter.
            let takes_cost = is_admitted && outcome.verdict == Verdict::Pass;
            let hits = match check.op {
                Op::Take { cost } if takes_cost => cost,
                Op::Take { .. } => outcome.charged,
                Op::Settle { cost } => cost,
                Op::Peek { .. } | Op::Refund { .. } | Op::Hold { .. } => return None,
            };
            let settles = check.holder.filter(|_| check.comes_first());
            let is_charged = *received == NOT_EXECUTED
                && (settles.is_some() || hits > Hits::ZERO)
                && !matches!(check.limit.algorithm, Algorithm::Concurrency(_));
            let (key, limit, role) = (check.key, Arc::clone(check.limit), check.role);
            is_charged.then_some(LateCharge { key, limit, hits, role, settles })
        });
        let send = || Arc::clone(self).send_late_charges();
        self.ledger.late_charges.add(charges, call.now, send);
    }

    /// Sends all waiting late charges, including those that are added in the meantime.
    pub(super) async fn send_late_charges(self: Arc<Self>) {
        while let Some((charges, now)) = self.ledger.late_charges.take_waiting() {
            let checks: Vec<Check<'_>> = charges.iter().map(LateCharge::to_check).collect();
            let accounting = Accounting::Independent;
            let call = Call { checks: &checks, accounting, now, deadline: None };
            let answers = self.decide(&call).await;
            if let Some(late) = answers.late {
                late.settle(LateFate::Keep);
            }
            self.ledger.late_charges.record_answers(&charges, &answers.each);
        }
    }

    /// Refunds charges on the remote store in a background task, so that the caller does not wait
    /// for the refund, unless too many refunds are in progress.
    fn refund_in_background(self: &Arc<Self>, receipts: Vec<Receipt>) {
        if receipts.is_empty() {
            return;
        }
        let (count, stack) = (receipts.len() as u64, Arc::clone(self));
        let refund = async move { stack.refund(&receipts).await };
        let counter = match start_refund(&self.ledger.refunds, refund) {
            true => &self.stats.refunded,
            false => &self.stats.refunds_lost,
        };
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Returns the reason why the remote store left checks unanswered, or `None` if it answered all of
/// them.
fn failure_kind(answers: &Answers) -> Option<FailureKind> {
    let is_unknown = answers.each.contains(&UNKNOWN);
    if !is_unknown && !answers.each.contains(&NOT_EXECUTED) {
        return None;
    }
    Some(answers.failure.unwrap_or(match answers.source {
        Source::Shed => FailureKind::Overload,
        _ if is_unknown => FailureKind::TimedOut,
        _ => FailureKind::NotConnected,
    }))
}
