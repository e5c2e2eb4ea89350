//! Prepaid hits, for limits with `prepay: auto`: a replica charges hits of a hot counter to the
//! store in advance, and later calls spend these hits without calling the store.
//!
//! A lot is the set of hits that one call charges in advance. The call charges them together with
//! the hits that it needs itself. If the limit refuses the larger charge, the call is sent again
//! without the lot. While the store decides the other checks of a call, the prepaid hits for the
//! call are reserved. If the call is rejected, they are put back into their lot. A task owns a call
//! that charges a lot or reserves hits, so that neither is lost if the caller leaves.
//!
//! Hits are always charged before they are spent, so a limit could be exceeded only if hits of one
//! window were spent in the next window. Therefore, a lot expires before its window can have ended
//! by the server's clock. This replica estimates that clock from the server time in the store's
//! answer to the charge. Its monotonic clock stands still while the machine is suspended, so all lots
//! end if the wall clock and the monotonic clock come to differ by a second.
//!
//! Unspent hits of an expired lot are refunded once. They are not refunded if a connection was lost or
//! the store may have lost counters, because the server in use may not have the charge. A charge with
//! an unknown outcome is never sent again, and its lot is lost.
//!
//! Not here: the size and the lifetime of a lot (`prepaid_lots`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::background_refunds::start_refund;
use super::prepaid_lots::{AddedLot, LotId, PrepaidLots, SpendResult};
use super::remaining_checks::RemainingChecks;
use super::stack_stats::StackStats;
use crate::clock::Clock;
use crate::domain::{
    Accounting, Admission, Answer, Answers, Call, ChargeRecord, Check, ExecutionStatus,
    FailureKind, Hits, LateFate, Micros, Op, Outcome, OwnedCall, Receipt, RepeatedCounters, Source,
    Verdict,
};
use crate::store::Store;
use crate::store::delivery::{Caller, run_in_task_until, unanswered};
use crate::store::owned_tasks::OwnedTasks;

/// Prepaid hits of this replica, and the store that charges them. Shared with the tasks that own calls
/// and with those that refund unspent hits.
#[derive(Debug)]
pub(super) struct PrepaidHits<S> {
    store: Arc<S>,
    pub(super) lots: PrepaidLots,
    clock_steps: ClockSteps,
    stats: Arc<StackStats>,
    /// Time at which this value was created. The times in [`PrepaidLots`] are relative to it.
    started: Instant,
    background_refunds: OwnedTasks,
    /// Tasks that own calls, and those that wait for the end of a lot.
    tasks: OwnedTasks,
}

/// Difference between the wall clock and the monotonic clock from which on a lot may not be spent:
/// the machine was suspended, or the wall clock was set.
const CLOCK_STEP_MIN: Micros = Micros::SECOND;

/// Detector of steps: moves of the wall clock by [`CLOCK_STEP_MIN`] or more against the monotonic
/// clock.
#[derive(Debug, Default)]
struct ClockSteps {
    /// Wall-clock time less monotonic time, in microseconds; 0 until the first call.
    difference: AtomicU64,
    count: AtomicU64,
}

impl ClockSteps {
    /// Compares the clocks. Returns true for one caller of each step.
    fn detect(&self, wall: Micros, monotonic: Micros) -> bool {
        let now = wall.0.wrapping_sub(monotonic.0);
        let known = self.difference.load(Ordering::Relaxed);
        if now.abs_diff(known) < CLOCK_STEP_MIN.0 {
            return false;
        }
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let is_step =
            self.difference.compare_exchange(known, now, success, failure).is_ok() && known != 0;
        if is_step {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
        is_step
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

/// Prepaid hits that are reserved for one check of a call. If the call is rejected, they are put
/// back into their lot.
struct ReservedHits {
    check_index: usize,
    lot_id: LotId,
}

/// Lot of prepaid hits that a call is currently charging. When dropped, lets another call charge
/// the next lot of the counter.
struct PendingLot<'a> {
    check_index: usize,
    hits: u64,
    lots: &'a PrepaidLots,
    check: Check<'a>,
}

impl Drop for PendingLot<'_> {
    fn drop(&mut self) {
        self.lots.end_refill(&self.check);
    }
}

/// Call whose remaining checks the store must decide, after prepaid hits have answered the others.
struct RemainingCall<'a> {
    start: CallStart,
    /// One answer per check of the call, in order. A check that the store must still decide has
    /// [`Answer::NotAsked`].
    answers: Vec<Answer>,
    reserved: SmallVec<[ReservedHits; 4]>,
    pending_lots: SmallVec<[PendingLot<'a>; 2]>,
}

/// Time at which a call started, and the session number of the store and the number of clock steps at
/// that time. The session number changes when a connection is lost or the store may have lost
/// counters.
#[derive(Clone, Copy)]
struct CallStart {
    session: u64,
    clock_steps: u64,
    now: Micros,
}

impl<S: Store> PrepaidHits<S> {
    pub(super) fn new(store: Arc<S>, replicas: u32, stats: Arc<StackStats>) -> Arc<Self> {
        Arc::new(PrepaidHits {
            store,
            lots: PrepaidLots::new(replicas),
            clock_steps: ClockSteps::default(),
            stats,
            started: Clock::System.monotonic_now(),
            background_refunds: OwnedTasks::default(),
            tasks: OwnedTasks::default(),
        })
    }

    /// Returns the time since this value was created.
    fn now(&self) -> Micros {
        let since = Clock::System.monotonic_now().saturating_duration_since(self.started);
        Micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// Decides a call with checks that [may be prepaid](may_be_prepaid).
    pub(super) async fn decide(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        let rest = match self.answer(call, true) {
            Ok(answers) => return answers,
            Err(rest) => rest,
        };
        // Boxed, so that the future of other calls stays small.
        if rest.reserved.is_empty() && rest.pending_lots.is_empty() {
            return Box::pin(self.decide_remaining(call, rest)).await;
        }
        // The task reserves anew: what it holds does not borrow from the caller.
        let RemainingCall { start, mut answers, reserved, pending_lots } = *rest;
        drop(pending_lots);
        self.put_back(call, &reserved, start, &mut answers);
        Box::pin(self.decide_in_task(call)).await
    }

    /// Waits until every call has ended, and every lot is spent or refunded, at most the lifetime of
    /// a lot and the refund.
    pub(super) async fn wait_until_idle(&self) {
        self.tasks.wait_until_done().await;
        self.background_refunds.wait_until_done().await;
    }

    /// Answers the checks of a call whose counters have enough prepaid hits, which it reserves. If the
    /// store must decide at least one check, returns a [`RemainingCall`] as the error, with the lots to
    /// charge meanwhile.
    fn answer<'a>(
        &'a self,
        call: &Call<'a>,
        may_charge_lots: bool,
    ) -> Result<Answers, Box<RemainingCall<'a>>> {
        let now = self.now();
        let PrepaidHits { store, lots, clock_steps, .. } = self;
        if clock_steps.detect(call.now, now) {
            lots.stop_spending();
        }
        let start = CallStart { session: store.session(), clock_steps: clock_steps.count(), now };
        let mut each = vec![Answer::NotAsked; call.checks.len()];
        let (mut reserved, mut pending_lots) = (SmallVec::new(), SmallVec::new());
        let may_charge_lots =
            may_charge_lots && can_be_repeated(call) && Handle::try_current().is_ok();
        let repeated = RepeatedCounters::from_checks(call.checks);
        for (at, check) in call.checks.iter().enumerate() {
            if !may_be_prepaid(check) || repeated.contains(&check.key) {
                continue;
            }
            match lots.spend(check, may_charge_lots, start.session, start.now) {
                SpendResult::Spent(lot, outcome) => {
                    each[at] = Answer::Decided(outcome);
                    reserved.push(ReservedHits { check_index: at, lot_id: lot });
                }
                SpendResult::NotSpent { lot_size: 0 } => {}
                SpendResult::NotSpent { lot_size: hits } => {
                    pending_lots.push(PendingLot { check_index: at, hits, lots, check: *check })
                }
            }
        }
        if reserved.len() == call.checks.len() {
            self.stats.prepaid_calls.fetch_add(1, Ordering::Relaxed);
            return Ok(Answers::new(each, Source::Redis));
        }
        Err(Box::new(RemainingCall { start, answers: each, reserved, pending_lots }))
    }

    /// Decides a call that charges a lot or reserves hits, in a task. The caller waits until the
    /// call's deadline, but the task waits for the store however long it takes.
    async fn decide_in_task(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        let (prepaid, owned) = (Arc::clone(self), OwnedCall::new(call));
        let work = |caller: Caller, fate: oneshot::Receiver<LateFate>| async move {
            let checks = owned.checks();
            let call = Call { deadline: None, ..owned.to_call(&checks) };
            let mut answers = match prepaid.answer(&call, true) {
                Ok(answers) => answers,
                Err(rest) => prepaid.decide_remaining(&call, rest).await,
            };
            let refund = async |each: &mut [Answer]| {
                let receipts = Receipt::for_rejected_call(call.checks, call.accounting, each);
                prepaid.store.refund(&receipts).await;
            };
            if answers.is_half_charged() {
                let (mut each, inner) = (answers.each.clone(), answers.late.take());
                let fate = caller.deliver_part(answers).await;
                // The store settles the charges that are not known yet. The known ones are refunded
                // by the caller or, if it has left, here.
                if let Some(inner) = inner {
                    let is_kept = fate == LateFate::Keep;
                    inner.settle(if is_kept { LateFate::Keep } else { LateFate::Refund });
                }
                if fate == LateFate::Unheard {
                    refund(&mut each).await;
                }
                return;
            }
            let Err(Some(mut answers)) = caller.try_deliver(answers) else { return };
            match fate.await.unwrap_or(LateFate::Unheard) {
                LateFate::Keep => {}
                LateFate::Refund => refund(&mut answers.each).await,
                LateFate::Unheard => prepaid.stats.unheard.add(answers.charged()),
            }
        };
        let unknown = |kind| unanswered(call, ExecutionStatus::Unknown, kind);
        match run_in_task_until(call.deadline, &self.tasks, &self.stats.unheard, work).await {
            Ok(answers) => answers.unwrap_or_else(|| unknown(FailureKind::Lost)),
            Err(late) => {
                self.stats.overruns.fetch_add(1, Ordering::Relaxed);
                Answers { late: Some(late), ..unknown(FailureKind::TimedOut) }
            }
        }
    }

    /// Lets the store decide the remaining checks of a call. If a limit refuses a charge that
    /// includes a lot of prepaid hits, decides the whole call again without charging lots.
    async fn decide_remaining<'a>(
        self: &'a Arc<Self>,
        call: &Call<'a>,
        mut rest: Box<RemainingCall<'a>>,
    ) -> Answers {
        loop {
            if let Some(answers) = self.try_decide_remaining(call, *rest).await {
                return answers;
            }
            match self.answer(call, false) {
                Ok(answers) => return answers,
                Err(without_lots) => rest = without_lots,
            }
        }
    }

    /// Lets the store decide the remaining checks of a call and charge the call's lots of prepaid
    /// hits. If a limit refuses a charge that includes a lot, and the store answered all checks,
    /// returns `None`; the store has then charged nothing.
    async fn try_decide_remaining(
        self: &Arc<Self>,
        call: &Call<'_>,
        rest: RemainingCall<'_>,
    ) -> Option<Answers> {
        let PrepaidHits { store, lots, .. } = &**self;
        let RemainingCall { start, answers, reserved, pending_lots } = rest;
        let mut remaining = RemainingChecks::new(call, answers);
        for (at, check) in remaining.positions.iter().zip(&mut remaining.checks) {
            if let Some(refill) = pending_lots.iter().find(|refill| refill.check_index == *at) {
                check.op = Op::Take { cost: Hits(check.cost().0.saturating_add(refill.hits)) };
            }
        }
        let Answers { each: received_each, source, late, local_share, failure } =
            store.apply(&Call { checks: &remaining.checks, ..*call }).await;
        let is_complete = !received_each.iter().any(is_unanswered);
        let received = self.now();
        let mut is_refused = false;
        let mut each = remaining.known;
        for (at, mut answer) in remaining.positions.iter().zip(received_each) {
            let check = &call.checks[*at];
            if let Answer::Decided(outcome) = &mut answer
                && may_be_prepaid(check)
            {
                lots.record_outcome(check, &subtract_lot(check, outcome), received);
                if pending_lots.iter().any(|refill| refill.check_index == *at) {
                    is_refused |= outcome.verdict == Verdict::Refuse;
                    self.add_charged_lot(check, outcome, start);
                }
            }
            each[*at] = answer;
        }
        drop(pending_lots);
        let is_rejected = call.accounting == Accounting::AllOrNothing
            && Admission::from_answers(call.checks, &each).is_rejected();
        // A call with an unknown outcome is never sent again. It stays rejected.
        let is_repeated = is_refused && is_complete;
        if is_repeated || is_rejected {
            self.put_back(call, &reserved, start, &mut each);
        }
        (!is_repeated).then_some(Answers { each, source, late, local_share, failure })
    }

    /// Adds a lot with the hits that were charged beyond the cost of a check, or refunds these hits
    /// if they can never be spent. In `outcome`, moves these hits from the charge to the available
    /// hits. Does nothing if no such hits were charged.
    fn add_charged_lot(
        self: &Arc<Self>,
        check: &Check<'_>,
        outcome: &mut Outcome,
        start: CallStart,
    ) {
        let taken = outcome.charged.0.saturating_sub(check.cost().0);
        if taken == 0 {
            return;
        }
        self.stats.prepaid_hits.fetch_add(taken, Ordering::Relaxed);
        let PrepaidHits { lots, clock_steps, .. } = &**self;
        // After a step of the clock, it is not known when the window of the charge ends.
        let is_timed = clock_steps.count() == start.clock_steps;
        let lot = is_timed.then(|| lots.add_lot(check, outcome, start.session, start.now));
        match lot.flatten() {
            Some(lot) => self.schedule_refund(lot),
            None => {
                let record = |record| ChargeRecord { hits: Hits(taken), ..record };
                let lot = Outcome { taken: outcome.taken.map(record), ..*outcome };
                self.refund_in_background(Receipt::for_check(check, &lot), start);
            }
        }
        // This replica may still spend the lot.
        let available = Hits(outcome.available.0.saturating_add(taken));
        let own = subtract_lot(check, outcome);
        *outcome = Outcome { available: available.min(check.limit.capacity()), ..own };
    }

    /// Puts the reserved hits of a call back into their lots, and marks them as refunded in
    /// `answers`. If a lot no longer exists, refunds its hits in the store.
    fn put_back(
        self: &Arc<Self>,
        call: &Call<'_>,
        reserved: &[ReservedHits],
        start: CallStart,
        answers: &mut [Answer],
    ) {
        for ReservedHits { check_index, lot_id } in reserved {
            let (check, answer) = (&call.checks[*check_index], &mut answers[*check_index]);
            let Answer::Decided(outcome) = answer else {
                continue;
            };
            if !self.lots.put_back(check, *lot_id) {
                self.refund_in_background(Receipt::for_check(check, outcome), start);
            }
            *outcome = outcome.refunded(check.limit.capacity());
        }
    }

    /// Starts a task that refunds the unspent hits of a lot when the lot expires.
    fn schedule_refund(self: &Arc<Self>, lot: AddedLot) {
        let prepaid = Arc::clone(self);
        let over = self.started + Duration::from_micros(lot.spend_until.0);
        // One task per lot: about forty per second for each hot counter.
        self.tasks.spawn(async move {
            tokio::time::sleep_until(over.into()).await;
            if let Some(receipt) = prepaid.lots.remove_lot(&lot, prepaid.store.session()) {
                prepaid.refund(receipt).await;
            }
        });
    }

    /// Starts a background task that refunds hits that belong to no lot. Refunds nothing if
    /// `receipt` is `None`, if the session number of the store has changed since `start`, or if too
    /// many refunds are in progress.
    fn refund_in_background(self: &Arc<Self>, receipt: Option<Receipt>, start: CallStart) {
        let Some(receipt) = receipt else { return };
        let prepaid = Arc::clone(self);
        let _is_started = start_refund(&self.background_refunds, async move {
            if prepaid.store.session() == start.session {
                prepaid.refund(receipt).await;
            }
        });
    }

    async fn refund(&self, receipt: Receipt) {
        self.stats.prepaid_refunded.fetch_add(receipt.taken.hits.0, Ordering::Relaxed);
        self.store.refund(&[receipt]).await;
    }
}

/// Returns whether a check may spend prepaid hits. A limit from a request override never sets
/// `prepay`.
pub(super) fn may_be_prepaid(check: &Check<'_>) -> bool {
    check.limit.prepay && check.is_required() && matches!(check.op, Op::Take { cost: Hits(1..) })
}

/// Returns whether a call may be sent again after one of its checks was refused. This is safe only
/// if the refusal means that nothing was charged.
fn can_be_repeated(call: &Call<'_>) -> bool {
    let is_atomic = call.accounting == Accounting::AllOrNothing
        && !call.checks.iter().any(|check| check.applies_when_rejected(call.accounting));
    call.checks.len() == 1 || is_atomic
}

fn is_unanswered(answer: &Answer) -> bool {
    matches!(answer, Answer::Unanswered { .. })
}

/// Returns `outcome` without the hits that were charged beyond the cost of the check.
fn subtract_lot(check: &Check<'_>, outcome: &Outcome) -> Outcome {
    let own = |taken: ChargeRecord| ChargeRecord { hits: taken.hits.min(check.cost()), ..taken };
    let charged = outcome.charged.min(check.cost());
    Outcome { charged, taken: outcome.taken.map(own), ..*outcome }
}

#[cfg(test)]
mod tests;
