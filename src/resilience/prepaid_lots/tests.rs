//! Tests of the table of prepaid hits, with a fixed window in place of the store.

use super::*;
use crate::domain::Verdict;
use crate::domain::fixtures::{fixed_window, take};

const WINDOW_MICROS: u64 = 1_000_000;
/// Server time when the clocks of the replicas are at zero, in microseconds since the Unix epoch.
/// It is in the middle of a window.
const SERVER_TIME_AT_ZERO: u64 = 1_763_596_800_000_000 + WINDOW_MICROS / 2;
const SESSION: u64 = 7;

fn limit(hits: u64) -> Arc<Limit> {
    Arc::new(Limit { prepay: true, ..fixed_window(hits, Micros(WINDOW_MICROS)) })
}

/// Returns the outcome that the store reports for a successful charge. `at` is the time of the
/// charge by the clocks of the replicas, in microseconds.
fn charged_outcome(hits: u64, available: u64, at: u64) -> Outcome {
    let at = SERVER_TIME_AT_ZERO + at;
    let window = Micros(at / WINDOW_MICROS * WINDOW_MICROS);
    let taken = ChargeRecord { hits: Hits(hits), at: Micros(at), window, entry: 0 };
    let reset_after = Micros(window.0 + WINDOW_MICROS - at);
    let passed = Outcome { reset_after, ..Outcome::pass(Hits(available)) };
    Outcome { charged: Hits(hits), taken: Some(taken), ..passed }
}

/// Makes the counter hot: charges 100 hits, one per millisecond from `start` on. Returns the time
/// of the last charge plus one millisecond, in microseconds.
fn make_hot(lots: &PrepaidLots, check: &Check<'_>, available: u64, start: u64) -> u64 {
    for at in (start..start + 100_000).step_by(1_000) {
        assert_eq!(
            lots.spend(check, false, SESSION, Micros(at)),
            SpendResult::NotSpent { lot_size: 0 }
        );
        lots.record_outcome(check, &charged_outcome(1, available, at), Micros(at));
    }
    start + 100_000
}

/// Charges the next lot of the counter and adds it to the table. Returns the number of hits in the
/// lot, and the added lot.
fn refill(lots: &PrepaidLots, check: &Check<'_>, now: u64) -> (u64, AddedLot) {
    let SpendResult::NotSpent { lot_size: lot } = lots.spend(check, true, SESSION, Micros(now))
    else {
        panic!("there are hits")
    };
    let outcome = charged_outcome(lot + check.cost().0, 100_000, now);
    let added = lots.add_lot(check, &outcome, SESSION, Micros(now)).unwrap();
    lots.end_refill(check);
    (lot, added)
}

fn is_spent(lots: &PrepaidLots, check: &Check<'_>, session: u64, now: u64) -> bool {
    matches!(lots.spend(check, false, session, Micros(now)), SpendResult::Spent(..))
}

#[test]
fn a_lot_covers_50_ms_up_to_a_quarter_of_the_available_hits() {
    for (replicas, available, expected) in
        [(1, 100_000, 50), (1, 160, 40), (4, 160, 10), (4, 32, 2), (4, 31, 0), (1, 0, 0)]
    {
        let (lots, limit) = (PrepaidLots::new(replicas), limit(100_000));
        let check = take(1, 1, &limit);
        assert_eq!(
            lots.spend(&check, true, SESSION, Micros(0)),
            SpendResult::NotSpent { lot_size: 0 }
        );
        let now = make_hot(&lots, &check, available, 0);
        let asked = lots.spend(&check, true, SESSION, Micros(now));
        assert_eq!(asked, SpendResult::NotSpent { lot_size: expected }, "{replicas} {available}");
    }
}

#[test]
fn a_counter_that_is_not_hot_gets_no_lot() {
    let (lots, limit) = (PrepaidLots::new(1), limit(100_000));
    let check = take(1, 1, &limit);
    for at in (0..1_000_000).step_by(50_000) {
        assert_eq!(
            lots.spend(&check, true, SESSION, Micros(at)),
            SpendResult::NotSpent { lot_size: 0 }
        );
        lots.record_outcome(&check, &charged_outcome(1, 90_000, 0), Micros(at));
    }
}

#[test]
fn one_call_charges_the_next_lot_while_others_spend_the_current_one() {
    let (lots, limit) = (PrepaidLots::new(1), limit(100_000));
    let check = take(1, 1, &limit);
    let now = make_hot(&lots, &check, 90_000, 0);
    let (lot, _) = refill(&lots, &check, now);
    assert_eq!(lot, 50);
    let spend = |may_take| lots.spend(&check, may_take, SESSION, Micros(now + 1_000));
    for _ in 0..25 {
        assert!(matches!(spend(true), SpendResult::Spent(..)));
    }
    assert_eq!(spend(true), SpendResult::NotSpent { lot_size: 25 }, "25 of 50 are left");
    assert!(matches!(spend(true), SpendResult::Spent(..)), "another call takes it");
    let outcome = charged_outcome(26, 90_000, now + 1_000);
    lots.add_lot(&check, &outcome, SESSION, Micros(now + 1_000)).unwrap();
    lots.end_refill(&check);
    let spent = (0..).take_while(|_| matches!(spend(false), SpendResult::Spent(..))).count();
    assert_eq!(spent, 24 + 25);
}

#[test]
fn a_lot_expires_with_its_lifetime_window_session_or_policy() {
    let limit = limit(100_000);
    let check = take(1, 1, &limit);
    let with_lot = |start| {
        let lots = PrepaidLots::new(1);
        let now = make_hot(&lots, &check, 90_000, start);
        let (_, added) = refill(&lots, &check, now);
        (lots, now, added)
    };
    let (lots, now, added) = with_lot(0);
    assert_eq!(added.spend_until, Micros(now + 100_000));
    assert!(is_spent(&lots, &check, SESSION, now + LOT_LIFETIME_MAX.0 - 1));
    assert!(!is_spent(&lots, &check, SESSION, now + LOT_LIFETIME_MAX.0));
    assert!(!is_spent(&lots, &check, SESSION + 1, now), "another session");
    assert_eq!(lots.remove_lot(&added, SESSION).unwrap().taken.hits, Hits(49));
    assert_eq!(lots.remove_lot(&added, SESSION).map(|receipt| receipt.taken), None, "once");

    // The window ends half a second after zero.
    let (lots, now, added) = with_lot(350_000);
    assert_eq!(now, 450_000);
    assert_eq!(added.spend_until, Micros(499_000));
    assert!(lots.remove_lot(&added, SESSION).is_none(), "its window is over");

    let (lots, now, added) = with_lot(0);
    lots.stop_spending();
    assert!(!is_spent(&lots, &check, SESSION, now));
    assert_eq!(lots.remove_lot(&added, SESSION).unwrap().taken.hits, Hits(50));

    let (lots, _, added) = with_lot(0);
    assert!(lots.remove_lot(&added, SESSION + 1).is_none(), "the server may be another one");
}

#[test]
fn a_new_lot_does_not_replace_a_lot_with_spendable_hits() {
    let (lots, limit) = (PrepaidLots::new(1), limit(100_000));
    let check = take(1, 1, &limit);
    // Shortly before the end of the window, so that no lot lives for its whole lifetime.
    let now = make_hot(&lots, &check, 90_000, 350_000);
    let (first, added) = refill(&lots, &check, now);
    assert!(added.spend_until < Micros(now + LOT_LIFETIME_MAX.0));
    let spent = first / 2 + 1;
    assert!((0..spent).all(|_| is_spent(&lots, &check, SESSION, now)));
    let (second, _) = refill(&lots, &check, now);
    let left = (0..).take_while(|_| is_spent(&lots, &check, SESSION, now)).count();
    assert_eq!(left as u64, first - spent + second);
}

#[test]
fn an_expired_lot_is_not_replaced_before_its_hits_are_refunded() {
    let (lots, limit) = (PrepaidLots::new(1), limit(100_000));
    let check = take(1, 1, &limit);
    let now = make_hot(&lots, &check, 90_000, 0);
    let (hits, added) = refill(&lots, &check, now);
    let later = added.spend_until;
    lots.add_lot(&check, &charged_outcome(51, 90_000, later.0), SESSION, later).unwrap();
    assert_eq!(lots.remove_lot(&added, SESSION).unwrap().taken.hits, Hits(hits));
}

#[test]
fn an_idle_account_with_unspent_hits_is_kept_until_they_are_refunded() {
    let (lots, limit) = (PrepaidLots::new(1), limit(100_000));
    let check = |n: usize| take((n * SET_COUNT) as u128, 1, &limit);
    let with_lot = |n| {
        let now = make_hot(&lots, &check(n), 90_000, 0);
        refill(&lots, &check(n), now).1
    };
    let added: Vec<AddedLot> = (0..ACCOUNTS_PER_SET).map(with_lot).collect();
    // All accounts of the set have been idle for long when another counter asks for one.
    let later = 100_000 + 2 * ACCOUNT_IDLE_MAX.0;
    let outcome = charged_outcome(1, 90_000, later);
    lots.record_outcome(&check(ACCOUNTS_PER_SET), &outcome, Micros(later));
    for lot in &added {
        let receipt = lots.remove_lot(lot, SESSION);
        assert_eq!(receipt.map(|receipt| receipt.taken.hits), Some(Hits(50)), "{lot:?}");
    }
}

#[test]
fn a_lot_of_a_window_that_has_not_begun_is_never_spent() {
    let (lots, limit) = (PrepaidLots::new(1), limit(100_000));
    let check = take(1, 1, &limit);
    let now = make_hot(&lots, &check, 90_000, 0);
    let mut outcome = charged_outcome(50, 90_000, now);
    if let Some(taken) = &mut outcome.taken {
        taken.window = Micros(taken.window.0 + WINDOW_MICROS);
    }
    assert_eq!(lots.add_lot(&check, &outcome, SESSION, Micros(now)), None);
}

#[test]
fn hits_are_put_back_into_their_lot_unless_it_is_removed() {
    let (lots, limit) = (PrepaidLots::new(1), limit(100_000));
    let check = take(1, 3, &limit);
    let now = make_hot(&lots, &take(1, 1, &limit), 90_000, 0);
    let (lot, added) = refill(&lots, &check, now);
    let SpendResult::Spent(id, outcome) = lots.spend(&check, false, SESSION, Micros(now)) else {
        panic!("there are hits")
    };
    assert_eq!((outcome.charged, outcome.taken.unwrap().hits), (Hits(3), Hits(3)));
    assert!(lots.put_back(&check, id));
    assert_eq!(lots.remove_lot(&added, SESSION).unwrap().taken.hits, Hits(lot));
    assert!(!lots.put_back(&check, id));
}

#[test]
fn a_lot_is_not_spent_under_a_new_policy_or_for_another_counter() {
    let (lots, old) = (PrepaidLots::new(1), limit(100_000));
    let now = make_hot(&lots, &take(1, 1, &old), 90_000, 0);
    refill(&lots, &take(1, 1, &old), now);
    let new = limit(100_000);
    assert!(!is_spent(&lots, &take(1, 1, &new), SESSION, now));
    assert!(!is_spent(&lots, &take(1 + SET_COUNT as u128, 1, &old), SESSION, now));
    assert!(is_spent(&lots, &take(1, 1, &old), SESSION, now));
}

#[test]
fn the_number_of_accounts_is_bounded() {
    let (lots, limit) = (PrepaidLots::new(1), limit(100_000));
    for identity in 0..100_000_u128 {
        lots.record_outcome(&take(identity, 1, &limit), &charged_outcome(1, 90_000, 0), Micros(0));
    }
    let held: usize = lots.sets.iter().map(|set| set.lock().len()).sum();
    assert_eq!(held, SET_COUNT * ACCOUNTS_PER_SET);
    // An idle counter gives its place to one that is hot.
    let hot = take(200_000, 1, &limit);
    let now = make_hot(&lots, &hot, 90_000, ACCOUNT_IDLE_MAX.0);
    refill(&lots, &hot, now);
}

/// Pseudo-random number generator for test data (xorshift).
struct Random(u64);

impl Random {
    fn next_below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Simulated call that waits for the store's answer. Times are in microseconds of the replicas'
/// clocks.
struct InFlightCall {
    replica: usize,
    cost: u64,
    lot_size: u64,
    sent_at: u64,
    executes_at: u64,
    answers_at: u64,
    outcome: Option<Outcome>,
}

/// Simulation of three replicas that make more calls than a fixed window admits, and of the store
/// that counts their hits.
struct ReplicaSimulation {
    random: Random,
    limit: Arc<Limit>,
    replicas: Vec<PrepaidLots>,
    in_flight: Vec<InFlightCall>,
    /// Lots to be refunded, as tuples of the replica's index, the time of the refund, and the lot.
    refunds: Vec<(usize, u64, AddedLot)>,
    /// Number of hits that the store has counted, by window.
    counted_hits: [u64; 6],
    admitted_hits: [u64; 6],
    lot_count: u64,
}

/// Returns the index of a window, counted from the first window of the simulation.
fn window_index(window: Micros) -> usize {
    ((window.0 - SERVER_TIME_AT_ZERO) / WINDOW_MICROS) as usize
}

/// Returns the start of the window that contains the replica time `now`. The start is a time of the
/// server's clock.
fn window_at(now: u64) -> Micros {
    Micros((SERVER_TIME_AT_ZERO + now) / WINDOW_MICROS * WINDOW_MICROS)
}

impl ReplicaSimulation {
    fn new(seed: u64, hits: u64) -> ReplicaSimulation {
        ReplicaSimulation {
            random: Random(0x9E37_79B9_7F4A_7C15 ^ seed),
            limit: limit(hits),
            replicas: (0..3).map(|_| PrepaidLots::new(3)).collect(),
            in_flight: Vec::new(),
            refunds: Vec::new(),
            counted_hits: [0; 6],
            admitted_hits: [0; 6],
            lot_count: 0,
        }
    }

    fn step(&mut self, now: u64) {
        (0..3).for_each(|replica| self.call(replica, now));
        let mut in_flight = std::mem::take(&mut self.in_flight);
        in_flight.iter_mut().for_each(|call| self.execute(call, now));
        in_flight.retain(|call| !self.deliver(call, now));
        self.in_flight.extend(in_flight);
        let refunds = std::mem::take(&mut self.refunds);
        self.refunds = refunds.into_iter().filter(|lot| !self.refund_if_due(lot, now)).collect();
    }

    fn call(&mut self, replica: usize, now: u64) {
        let cost = 1 + self.random.next_below(3);
        let check = take(1, cost, &self.limit);
        match self.replicas[replica].spend(&check, true, SESSION, Micros(now)) {
            SpendResult::Spent(_, outcome) => {
                let window = outcome.taken.unwrap().window;
                assert_eq!(window, window_at(now), "spent in another window");
                self.admitted_hits[window_index(window)] += cost;
            }
            SpendResult::NotSpent { lot_size: lot } => {
                assert!(lot <= self.limit.capacity().0 / 12);
                self.lot_count += u64::from(lot > 0);
                let executes_at = now + self.random.next_below(3_000);
                let answers_at = executes_at + self.random.next_below(3_000);
                let outcome = None;
                self.in_flight.push(InFlightCall {
                    replica,
                    cost,
                    lot_size: lot,
                    sent_at: now,
                    executes_at,
                    answers_at,
                    outcome,
                });
            }
        }
    }

    /// Decides a call in the store if its command has reached the store by `now`.
    fn execute(&mut self, call: &mut InFlightCall, now: u64) {
        if call.outcome.is_some() || call.executes_at > now {
            return;
        }
        let (hits, needed) = (self.limit.capacity().0, call.cost + call.lot_size);
        let count = &mut self.counted_hits[window_index(window_at(call.executes_at))];
        let mut outcome = charged_outcome(needed, 0, call.executes_at);
        if *count + needed <= hits {
            *count += needed;
        } else {
            outcome = Outcome { charged: Hits::ZERO, taken: None, ..outcome };
            outcome.verdict = Verdict::Refuse;
        }
        outcome.available = Hits(hits - *count);
        call.outcome = Some(outcome);
    }

    /// Delivers the store's answer to the replica that made the call. Returns false if the answer
    /// has not arrived yet.
    fn deliver(&mut self, call: &InFlightCall, now: u64) -> bool {
        let Some(outcome) = call.outcome.filter(|_| call.answers_at <= now) else { return false };
        let (lots, check) = (&self.replicas[call.replica], take(1, call.cost, &self.limit));
        let own = Hits(outcome.charged.0.min(call.cost));
        lots.record_outcome(&check, &Outcome { charged: own, ..outcome }, Micros(now));
        if let Some(taken) = outcome.taken {
            self.admitted_hits[window_index(taken.window)] += call.cost;
            if call.lot_size > 0 {
                let added = lots.add_lot(&check, &outcome, SESSION, Micros(call.sent_at)).unwrap();
                let late = added.spend_until.0.max(now) + self.random.next_below(2_000);
                self.refunds.push((call.replica, late, added));
            }
        }
        if call.lot_size > 0 {
            lots.end_refill(&check);
        }
        true
    }

    /// Refunds the unspent hits of a lot if its refund is due. Returns whether it was due.
    fn refund_if_due(&mut self, (replica, at, lot): &(usize, u64, AddedLot), now: u64) -> bool {
        if *at > now {
            return false;
        }
        if let Some(Receipt { taken, .. }) = self.replicas[*replica].remove_lot(lot, SESSION)
            && taken.window == window_at(now)
        {
            self.counted_hits[window_index(taken.window)] -= taken.hits.0;
        }
        true
    }
}

#[test]
fn three_replicas_use_up_each_window_without_exceeding_it() {
    // The last limit is never reached, so that lots are held when a window ends.
    let limits = [40, 1_000, 20_000, 1_000_000];
    for (seed, hits) in (1..=6).flat_map(|seed| limits.map(|hits| (seed, hits))) {
        let mut world = ReplicaSimulation::new(seed, hits);
        (WINDOW_MICROS / 2..4 * WINDOW_MICROS).step_by(100).for_each(|now| world.step(now));
        let ReplicaSimulation { counted_hits, admitted_hits, lot_count, .. } = world;
        for (admitted, count) in admitted_hits.into_iter().zip(counted_hits) {
            assert!(admitted <= count && count <= hits, "{seed}: {admitted} {count} {hits}");
        }
        // The first three windows are whole.
        let is_full = |sum: &u64| hits > 20_000 || *sum + 3 >= hits;
        assert!(admitted_hits[..3].iter().all(is_full), "{seed}: {admitted_hits:?} of {hits}");
        assert!(hits < 100 || lot_count > 10, "{seed}: {lot_count} lots");
    }
}
