//! Prepaid hits, for limits with `prepay: auto`: a replica charges hits of a hot counter to the
//! store in advance, and later calls spend these hits without calling the store.
//!
//! A lot is the set of hits that one call charges in advance. The call charges them together with
//! the hits that it needs itself. If the limit refuses the larger charge, the call is sent again
//! without the lot. While the store decides the other checks of a call, the prepaid hits for the
//! call are reserved. If the call is rejected, they are put back into their lot.
//!
//! Hits are always charged before they are spent, so a limit could be exceeded only if hits of one
//! window were spent in the next window. Therefore, a lot expires before its window can have ended
//! by the server's clock. This replica estimates that clock from the server time in the store's
//! answer to the charge. Unspent hits of an expired lot are refunded once. They are not refunded if
//! a connection was lost or the store may have lost counters, because the server in use may not
//! have the charge. A charge with an unknown outcome is never sent again, and its lot is lost.
//!
//! Not here: the size and the lifetime of a lot (`prepaid_lots`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::background_refunds::BackgroundRefunds;
use super::prepaid_lots::{AddedLot, LotId, PrepaidLots, SpendResult};
use super::remaining_checks::RemainingChecks;
use crate::clock::Clock;
use crate::domain::{
    Accounting, Admission, Answer, Answers, Call, ChargeRecord, Check, Hits, Micros, Op, Outcome,
    Receipt, RepeatedCounters, Source, Verdict,
};
use crate::store::owned_tasks::OwnedTasks;
use crate::store::{SharedStore, SharedStoreStats, Store};

/// Store wrapper that answers checks of hot counters from hits that were charged in advance.
#[derive(Debug)]
pub struct PrepaidHits<S> {
    shared: Arc<SharedState<S>>,
    clock: Clock,
    /// Time at which the wrapper was created. The times in [`PrepaidLots`] are relative to it.
    started: Instant,
    background_refunds: BackgroundRefunds,
    /// Tasks that wait for the end of a lot.
    lot_tasks: OwnedTasks,
}

/// State shared with the background tasks that refund unspent hits.
#[derive(Debug)]
struct SharedState<S> {
    store: S,
    lots: PrepaidLots,
    stats: PrepaidStats,
}

/// Statistics of prepaid hits, as totals since startup.
#[derive(Debug, Default)]
struct PrepaidStats {
    /// Number of calls answered entirely from prepaid hits, without calling the store.
    calls_saved: AtomicU64,
    /// Number of hits charged in advance.
    hits_charged: AtomicU64,
    /// Number of prepaid hits that were refunded, because no call spent them.
    hits_refunded: AtomicU64,
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

/// Time at which a call started, and the session number of the store at that time. The number
/// changes when a connection is lost or the store may have lost counters.
#[derive(Clone, Copy)]
struct CallStart {
    session: u64,
    now: Micros,
}

impl<S: Store> PrepaidHits<S> {
    /// Wraps a store. `replicas` is the number of replicas that share the limits.
    pub fn new(store: S, replicas: u32, clock: Clock) -> Self {
        let (lots, stats) = (PrepaidLots::new(replicas), PrepaidStats::default());
        let started = clock.monotonic_now();
        let shared = Arc::new(SharedState { store, lots, stats });
        let (background_refunds, lot_tasks) = Default::default();
        PrepaidHits { shared, clock, started, background_refunds, lot_tasks }
    }

    /// Returns the time since the wrapper was created.
    fn now(&self) -> Micros {
        let since = self.clock.monotonic_now().saturating_duration_since(self.started);
        Micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// Answers the checks of a call from prepaid hits. If the store must decide at least one check,
    /// returns a [`RemainingCall`] as the error.
    fn answer<'a>(
        &'a self,
        call: &Call<'a>,
        may_charge_lots: bool,
    ) -> Result<Answers, Box<RemainingCall<'a>>> {
        let start = CallStart { session: self.shared.store.session(), now: self.now() };
        let mut each = vec![Answer::NotAsked; call.checks.len()];
        let (reserved, pending_lots) = self.reserve(call, may_charge_lots, start, &mut each);
        if reserved.len() == call.checks.len() {
            self.shared.stats.calls_saved.fetch_add(1, Ordering::Relaxed);
            return Ok(Answers { each, source: Source::Redis });
        }
        Err(Box::new(RemainingCall { start, answers: each, reserved, pending_lots }))
    }

    /// Lets the store decide the remaining checks of a call. If a limit refuses a charge that
    /// includes a lot of prepaid hits, decides the whole call again without charging lots.
    async fn decide_remaining<'a>(
        &'a self,
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
        &self,
        call: &Call<'_>,
        rest: RemainingCall<'_>,
    ) -> Option<Answers> {
        let SharedState { store, lots, .. } = &*self.shared;
        let RemainingCall { start, answers: mut each, reserved, pending_lots } = rest;
        let mut remaining = RemainingChecks::new(call, &each);
        for (at, check) in remaining.positions.iter().zip(&mut remaining.checks) {
            if let Some(refill) = pending_lots.iter().find(|refill| refill.check_index == *at) {
                check.op = Op::Take { cost: Hits(check.cost().0.saturating_add(refill.hits)) };
            }
        }
        let answers = store.apply(&Call { checks: &remaining.checks, ..*call }).await;
        let is_complete = !answers.each.iter().any(is_unanswered);
        let received = self.now();
        let mut is_refused = false;
        for (at, mut answer) in remaining.positions.iter().zip(answers.each) {
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
        (!is_repeated).then_some(Answers { each, source: answers.source })
    }

    /// Reserves prepaid hits for each check whose counter has enough of them, and writes the
    /// outcome to the check's element of `answers`. Returns the reserved hits, and the lots to
    /// charge when the store decides the remaining checks.
    fn reserve<'a>(
        &'a self,
        call: &Call<'a>,
        may_charge_lots: bool,
        start: CallStart,
        answers: &mut [Answer],
    ) -> (SmallVec<[ReservedHits; 4]>, SmallVec<[PendingLot<'a>; 2]>) {
        let (mut reserved, mut pending_lots) = (SmallVec::new(), SmallVec::new());
        let may_charge_lots =
            may_charge_lots && can_be_repeated(call) && Handle::try_current().is_ok();
        let repeated = RepeatedCounters::from_checks(call.checks);
        let lots = &self.shared.lots;
        for (at, check) in call.checks.iter().enumerate() {
            if !may_be_prepaid(check) || repeated.contains(&check.key) {
                continue;
            }
            match lots.spend(check, may_charge_lots, start.session, start.now) {
                SpendResult::Spent(lot, outcome) => {
                    answers[at] = Answer::Decided(outcome);
                    reserved.push(ReservedHits { check_index: at, lot_id: lot });
                }
                SpendResult::NotSpent { lot_size: 0 } => {}
                SpendResult::NotSpent { lot_size: hits } => {
                    pending_lots.push(PendingLot { check_index: at, hits, lots, check: *check })
                }
            }
        }
        (reserved, pending_lots)
    }

    /// Adds a lot with the hits that were charged beyond the cost of a check, or refunds these hits
    /// if they can never be spent. In `outcome`, moves these hits from the charge to the available
    /// hits. Does nothing if no such hits were charged.
    fn add_charged_lot(&self, check: &Check<'_>, outcome: &mut Outcome, start: CallStart) {
        let taken = outcome.charged.0.saturating_sub(check.cost().0);
        if taken == 0 {
            return;
        }
        self.shared.stats.hits_charged.fetch_add(taken, Ordering::Relaxed);
        match self.shared.lots.add_lot(check, outcome, start.session, start.now) {
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
        &self,
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
            if !self.shared.lots.put_back(check, *lot_id) {
                self.refund_in_background(Receipt::for_check(check, outcome), start);
            }
            *outcome = outcome.refunded(check.limit.capacity());
        }
    }

    /// Starts a task that refunds the unspent hits of a lot when the lot expires.
    fn schedule_refund(&self, lot: AddedLot) {
        let shared = Arc::clone(&self.shared);
        let over = self.started + Duration::from_micros(lot.spend_until.0);
        // One task per lot: about forty per second for each hot counter.
        self.lot_tasks.spawn(async move {
            tokio::time::sleep_until(over.into()).await;
            if let Some(receipt) = shared.lots.remove_lot(&lot, shared.store.session()) {
                shared.refund(receipt).await;
            }
        });
    }

    /// Starts a background task that refunds hits that belong to no lot. Refunds nothing if
    /// `receipt` is `None`, if the session number of the store has changed since `start`, or if too
    /// many refunds are in progress.
    fn refund_in_background(&self, receipt: Option<Receipt>, start: CallStart) {
        let Some(receipt) = receipt else { return };
        let shared = Arc::clone(&self.shared);
        let _is_started = self.background_refunds.start(async move {
            if shared.store.session() == start.session {
                shared.refund(receipt).await;
            }
        });
    }
}

impl<S: Store> SharedState<S> {
    async fn refund(&self, receipt: Receipt) {
        self.stats.hits_refunded.fetch_add(receipt.taken.hits.0, Ordering::Relaxed);
        self.store.refund(&[receipt]).await;
    }
}

/// Returns whether a check may spend prepaid hits. A limit from a request override never sets
/// `prepay`.
fn may_be_prepaid(check: &Check<'_>) -> bool {
    check.limit.prepay && check.is_required() && matches!(check.op, Op::Take { cost: Hits(1..) })
}

/// Returns whether a call may be sent again after one of its checks was refused. This is safe only
/// if the refusal means that nothing was charged.
fn can_be_repeated(call: &Call<'_>) -> bool {
    let is_atomic = call.accounting == Accounting::AllOrNothing
        && !call.checks.iter().any(Check::applies_when_rejected);
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

impl<S: SharedStore> SharedStore for PrepaidHits<S> {
    type Node = S::Node;

    fn nodes(&self) -> Vec<S::Node> {
        self.shared.store.nodes()
    }

    async fn wait_until_connected(&self) {
        self.shared.store.wait_until_connected().await;
    }

    /// Also waits until every lot is spent or refunded, at most [`LOT_LIFETIME_MAX`] and the refund.
    async fn wait_until_idle(&self) {
        self.lot_tasks.wait_until_done().await;
        self.background_refunds.wait_until_done().await;
        self.shared.store.wait_until_idle().await;
    }

    fn shared_stats(&self) -> SharedStoreStats {
        let PrepaidStats { calls_saved, hits_charged, hits_refunded } = &self.shared.stats;
        SharedStoreStats {
            prepaid_calls: calls_saved.load(Ordering::Relaxed),
            prepaid_hits: hits_charged.load(Ordering::Relaxed),
            prepaid_refunded: hits_refunded.load(Ordering::Relaxed),
            ..self.shared.store.shared_stats()
        }
    }

    fn is_available(&self) -> bool {
        self.shared.store.is_available()
    }

    fn failure(&self) -> Option<String> {
        self.shared.store.failure()
    }

    fn retire_policy(&self) {
        self.shared.lots.stop_spending();
        self.shared.store.retire_policy();
    }
}

impl<S: Store> Store for PrepaidHits<S> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        if !call.checks.iter().any(may_be_prepaid) {
            return self.shared.store.apply(call).await;
        }
        match self.answer(call, true) {
            Ok(answers) => answers,
            // Boxed, so that the future of other calls stays small.
            Err(rest) => Box::pin(self.decide_remaining(call, rest)).await,
        }
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.shared.store.refund(receipts).await;
    }

    fn counter_losses(&self) -> u64 {
        self.shared.store.counter_losses()
    }

    fn session(&self) -> u64 {
        self.shared.store.session()
    }

    /// Returns true for a check that may spend prepaid hits: a refusal may be transient, because
    /// other replicas refund the prepaid hits that they do not spend. For any other check, returns
    /// the wrapped store's result.
    fn has_transient_refusals(&self, check: &Check<'_>) -> bool {
        may_be_prepaid(check) || self.shared.store.has_transient_refusals(check)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::domain::fixtures::{fixed_window, take};
    use crate::domain::{Charge, ExecutionStatus, Limit, Role};

    const START: CallStart = CallStart { session: 7, now: Micros(100_000) };

    /// Store that returns the same answers to every call, and records the hits of each refund.
    struct TestStore {
        answers: Vec<Answer>,
        session: AtomicU64,
        refunded: Mutex<Vec<Hits>>,
    }

    impl Store for TestStore {
        async fn apply(&self, _: &Call<'_>) -> Answers {
            Answers { each: self.answers.clone(), source: Source::Redis }
        }

        async fn refund(&self, receipts: &[Receipt]) {
            let hits = receipts.iter().map(|receipt| receipt.taken.hits);
            self.refunded.lock().unwrap().extend(hits);
        }

        fn session(&self) -> u64 {
            self.session.load(Ordering::Relaxed)
        }
    }

    fn prepaid_hits(answers: Vec<Answer>) -> PrepaidHits<TestStore> {
        let session = AtomicU64::new(START.session);
        let store = TestStore { answers, session, refunded: Mutex::default() };
        PrepaidHits::new(store, 1, Clock::System)
    }

    fn prepaid_limit() -> Arc<Limit> {
        Arc::new(Limit { prepay: true, ..fixed_window(100, Micros::SECOND) })
    }

    /// Returns the outcome of a charge that leaves 80 hits.
    fn charged_outcome(hits: u64) -> Outcome {
        let (hits, at) = (Hits(hits), Micros::ZERO);
        let taken = ChargeRecord { hits, at, window: Micros::ZERO, entry: 0 };
        Outcome { charged: hits, taken: Some(taken), ..Outcome::pass(Hits(80)) }
    }

    #[test]
    fn only_required_charges_of_prepaid_limits_are_prepaid() {
        let (limit, plain) = (prepaid_limit(), Arc::new(fixed_window(100, Micros::SECOND)));
        let check = take(1, 1, &limit);
        assert!(may_be_prepaid(&check));
        for other in [
            take(1, 1, &plain),
            take(1, 0, &limit),
            Check { role: Role::Shadow, ..check },
            Check { role: Role::Quota(0), ..check },
            Check { op: Op::PEEK, ..check },
            Check { op: Op::Refund { cost: Hits(1) }, ..check },
        ] {
            assert!(!may_be_prepaid(&other), "{other:?}");
        }
    }

    #[test]
    fn a_refusal_of_a_prepaid_limit_may_be_transient() {
        let (limit, plain) = (prepaid_limit(), Arc::new(fixed_window(100, Micros::SECOND)));
        let prepaid = prepaid_hits(Vec::new());
        assert!(prepaid.has_transient_refusals(&take(1, 1, &limit)));
        assert!(!prepaid.has_transient_refusals(&take(1, 1, &plain)));
    }

    #[test]
    fn a_call_is_repeated_only_if_a_refusal_means_that_nothing_was_charged() {
        let limit = prepaid_limit();
        let debt = Arc::new(Limit { charge: Charge::Always, ..Limit::clone(&limit) });
        let [one, other] = [1, 2].map(|identity| take(identity, 1, &limit));
        let refund = Check { op: Op::Refund { cost: Hits(1) }, ..other };
        for (checks, accounting, expected) in [
            (&[one][..], Accounting::AllOrNothing, true),
            (&[one][..], Accounting::Independent, true),
            (&[one, other][..], Accounting::AllOrNothing, true),
            (&[one, other][..], Accounting::Independent, false),
            (&[one, take(2, 1, &debt)][..], Accounting::AllOrNothing, false),
            (&[one, refund][..], Accounting::AllOrNothing, false),
        ] {
            let call = Call { checks, accounting, now: Micros::ZERO, deadline: None };
            assert_eq!(can_be_repeated(&call), expected, "{call:?}");
        }
    }

    #[tokio::test]
    async fn a_call_whose_lot_is_refused_is_sent_again_unless_an_outcome_is_unknown() {
        let limit = prepaid_limit();
        let checks = [1, 2].map(|identity| take(identity, 1, &limit));
        let accounting = Accounting::AllOrNothing;
        let call = Call { checks: &checks, accounting, now: Micros::ZERO, deadline: None };
        let refused = Answer::Decided(Outcome::refuse_for(Micros::SECOND));
        let unknown = Answer::Unanswered { executed: ExecutionStatus::Unknown };
        for (other, is_final) in [(Answer::NotAsked, false), (unknown, true)] {
            let prepaid = prepaid_hits(vec![refused, other]);
            let lots = &prepaid.shared.lots;
            let lot = PendingLot { check_index: 0, hits: 10, lots, check: checks[0] };
            let rest = RemainingCall {
                start: START,
                answers: vec![Answer::NotAsked; 2],
                reserved: SmallVec::new(),
                pending_lots: SmallVec::from_iter([lot]),
            };
            let answers = prepaid.try_decide_remaining(&call, rest).await;
            assert_eq!(answers.is_some(), is_final, "{other:?}");
        }
    }

    #[tokio::test]
    async fn charged_hits_that_belong_to_no_lot_are_refunded_unless_the_session_has_changed() {
        let limit = prepaid_limit();
        let check = take(1, 3, &limit);
        for (session, refunded) in [(START.session, vec![Hits(10)]), (START.session + 1, vec![])] {
            let prepaid = prepaid_hits(Vec::new());
            let store = &prepaid.shared.store;
            store.session.store(session, Ordering::Relaxed);
            let mut outcome = charged_outcome(13);
            // The counter has no account, so the hits cannot be added as a lot.
            prepaid.add_charged_lot(&check, &mut outcome, START);
            tokio::task::yield_now().await;
            assert_eq!(*store.refunded.lock().unwrap(), refunded);
            assert_eq!((outcome.charged, outcome.available), (Hits(3), Hits(90)));
            assert_eq!(outcome.taken.map(|taken| taken.hits), Some(Hits(3)));
        }
    }

    #[tokio::test]
    async fn hits_of_a_rejected_call_are_refunded_if_their_lot_has_ended() {
        let (prepaid, limit) = (prepaid_hits(Vec::new()), prepaid_limit());
        let lots = &prepaid.shared.lots;
        let checks = [take(1, 3, &limit)];
        lots.record_outcome(&checks[0], &charged_outcome(3), START.now);
        let lot = lots.add_lot(&checks[0], &charged_outcome(13), START.session, START.now).unwrap();
        let SpendResult::Spent(lot_id, outcome) =
            lots.spend(&checks[0], false, START.session, START.now)
        else {
            panic!("there are hits")
        };
        assert_eq!(lots.remove_lot(&lot, START.session).unwrap().taken.hits, Hits(7));
        let accounting = Accounting::AllOrNothing;
        let call = Call { checks: &checks, accounting, now: Micros::ZERO, deadline: None };
        let mut answers = [Answer::Decided(outcome)];
        let reserved = [ReservedHits { check_index: 0, lot_id }];
        prepaid.put_back(&call, &reserved, START, &mut answers);
        tokio::task::yield_now().await;
        assert_eq!(*prepaid.shared.store.refunded.lock().unwrap(), [Hits(3)]);
        assert_eq!(answers[0].outcome().unwrap().charged, Hits::ZERO);
    }
}
