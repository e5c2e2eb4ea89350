//! Tests of prepaid hits over a store whose answers a test writes.

use std::sync::Mutex;

use super::*;
use crate::domain::fixtures::{fixed_window, take};
use crate::domain::{Charge, ExecutionStatus, Limit, Role};

const START: CallStart = CallStart { session: 7, clock_steps: 0, now: Micros(100_000) };

/// Store that returns the same answers to every call, and records the hits of each refund.
struct TestStore {
    answers: Vec<Answer>,
    session: AtomicU64,
    refunded: Mutex<Vec<Hits>>,
}

impl Store for TestStore {
    async fn apply(&self, _: &Call<'_>) -> Answers {
        Answers::new(self.answers.clone(), Source::Redis)
    }

    async fn refund(&self, receipts: &[Receipt]) {
        let hits = receipts.iter().map(|receipt| receipt.taken.hits);
        self.refunded.lock().unwrap().extend(hits);
    }

    fn session(&self) -> u64 {
        self.session.load(Ordering::Relaxed)
    }
}

fn prepaid_hits(answers: Vec<Answer>) -> Arc<PrepaidHits<TestStore>> {
    let session = AtomicU64::new(START.session);
    let store = TestStore { answers, session, refunded: Mutex::default() };
    PrepaidHits::new(Arc::new(store), 1, Arc::default())
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
        let lots = &prepaid.lots;
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

#[test]
fn all_lots_end_when_the_wall_clock_moves_a_second_against_the_monotonic_clock() {
    let (prepaid, limit) = (prepaid_hits(Vec::new()), prepaid_limit());
    let checks = [take(1, 1, &limit)];
    let started = Micros(1_763_596_800_000_000);
    // Number of clock steps after a call at a wall-clock time, in milliseconds beyond what has passed.
    let steps_at = |millis: u64| {
        let now = Micros(started.0 + prepaid.now().0 + 1_000 * millis);
        let accounting = Accounting::AllOrNothing;
        let call = Call { checks: &checks, accounting, now, deadline: None };
        let _rest = prepaid.answer(&call, false);
        prepaid.clock_steps.count()
    };
    assert_eq!(steps_at(0), 0);
    // Half a second is left for a machine that does not run this test for a while.
    assert_eq!(steps_at(500), 0);
    // Far in the future of the monotonic clock, so that only a step can end it.
    let (lots, later) = (&prepaid.lots, Micros(1_000_000_000_000));
    lots.record_outcome(&checks[0], &charged_outcome(1), later);
    lots.add_lot(&checks[0], &charged_outcome(50), START.session, later).unwrap();
    let is_spent = || {
        let result = lots.spend(&checks[0], false, START.session, later);
        matches!(result, SpendResult::Spent(..))
    };
    assert!(is_spent());
    assert_eq!(steps_at(3_600_000), 1, "the machine was suspended for an hour");
    assert!(!is_spent(), "its window may have ended");
    assert_eq!(steps_at(3_600_000), 1);
    assert_eq!(steps_at(0), 2, "the wall clock was set back");
}

#[tokio::test]
async fn hits_charged_across_a_clock_step_are_refunded_and_never_spent() {
    let (prepaid, limit) = (prepaid_hits(Vec::new()), prepaid_limit());
    let check = take(1, 3, &limit);
    prepaid.lots.record_outcome(&check, &charged_outcome(3), START.now);
    prepaid.clock_steps.count.store(1, Ordering::Relaxed);
    prepaid.add_charged_lot(&check, &mut charged_outcome(13), START);
    tokio::task::yield_now().await;
    assert_eq!(*prepaid.store.refunded.lock().unwrap(), [Hits(10)]);
}

#[tokio::test]
async fn charged_hits_that_belong_to_no_lot_are_refunded_unless_the_session_has_changed() {
    let limit = prepaid_limit();
    let check = take(1, 3, &limit);
    for (session, refunded) in [(START.session, vec![Hits(10)]), (START.session + 1, vec![])] {
        let prepaid = prepaid_hits(Vec::new());
        let store = &prepaid.store;
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
    let lots = &prepaid.lots;
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
    assert_eq!(*prepaid.store.refunded.lock().unwrap(), [Hits(3)]);
    assert_eq!(answers[0].outcome().unwrap().charged, Hits::ZERO);
}
