//! Decisions without an answer from the store: by rule, by role, within the replica's share.
//!
//! The remote store here is a memory store that omits answers on demand; `redis_outage` uses a real
//! Redis.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Answer, Answers, Call, Charge, Check, CounterKey, ExecutionStatus, FailureKind,
    Hits, Holder, Limit, Micros, OnStoreFailure, Op, Receipt, Role, Source, Verdict,
};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::store::memory::MemoryStore;
use tidegate::store::{LocalStore, Store};

use crate::support::limits::{self, HOUR, bucket, call, reserved};

const NOW: Micros = Micros(1_763_668_800_000_000);

/// A memory store that does not answer for the checks at these places, and why.
pub struct FlakyStore {
    store: MemoryStore,
    silent: Mutex<Vec<(usize, ExecutionStatus)>>,
    gone: AtomicBool,
    refunded: Mutex<Vec<Receipt>>,
}

impl FlakyStore {
    fn new() -> FlakyStore {
        FlakyStore {
            store: MemoryStore::new(10_000),
            silent: Mutex::default(),
            gone: AtomicBool::new(false),
            refunded: Mutex::default(),
        }
    }
}

impl Store for FlakyStore {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let unanswered = |executed| Answer::Unanswered { executed };
        if self.gone.load(Ordering::SeqCst) {
            let each = vec![unanswered(ExecutionStatus::NotExecuted); call.checks.len()];
            return Answers::new(each, Source::Redis);
        }
        let silent = self.silent.lock().unwrap().clone();
        let is_silent = |at: &usize| silent.iter().any(|(place, _)| place == at);
        // As a cluster does: what lies elsewhere is decided without what cannot be reached, and a
        // part of the quota checks cannot refuse the call.
        let heard: Vec<usize> = (0..call.checks.len()).filter(|at| !is_silent(at)).collect();
        let alone = !silent.is_empty() && call.accounting == Accounting::AllOrNothing;
        let part = |at: &usize| match call.checks[*at] {
            check if alone && check.is_quota() => Check { role: Role::Shadow, ..check },
            check => check,
        };
        let checks: Vec<Check<'_>> = heard.iter().map(part).collect();
        let answers = self.store.decide(&Call { checks: &checks, ..*call });
        let mut each = vec![Answer::NotAsked; call.checks.len()];
        for (at, answer) in heard.iter().zip(answers) {
            each[*at] = answer;
        }
        for (at, executed) in silent {
            each[at] = unanswered(executed);
        }
        Answers::new(each, Source::Redis)
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.refunded.lock().unwrap().extend_from_slice(receipts);
        self.store.refund(receipts).await;
    }
}

pub fn window(hits: u64, on_store_failure: OnStoreFailure) -> Arc<Limit> {
    limits::on_failure(&limits::window(hits, HOUR), on_store_failure)
}

pub fn take(identity: u128, limit: &Arc<Limit>, cost: u64) -> Check<'_> {
    limits::take(CounterKey { identity, tag: None }, limit, cost)
}

fn fallback(replicas: u32) -> Arc<Stack<FlakyStore, MemoryStore>> {
    let local = MemoryStore::new(10_000);
    let config = StackConfig { replicas, refusal_cache: false, ..StackConfig::default() };
    Stack::new(FlakyStore::new(), local, config, Clock::System)
}

async fn verdict(store: &Arc<Stack<FlakyStore, MemoryStore>>, check: Check<'_>) -> Verdict {
    store.apply(&call(&[check], NOW)).await.each[0].outcome().unwrap().verdict
}

/// Holds of the store count in its outage, too, against this replica's share; a settle is charged.
#[tokio::test]
async fn an_outage_holds_locally() {
    let store = fallback(2);
    let limit = reserved(&window(100, OnStoreFailure::Local), 60);
    let check = |id, op| Check { op, holder: Some(Holder(id)), ..take(1, &limit, 1) };
    let hold = |id, hits| check(id, Op::Hold { cost: Hits(hits), ttl_secs: 60 });
    let settle = |id, hits| check(id, Op::Settle { cost: Hits(hits) });
    assert_eq!(verdict(&store, hold(1, 30)).await, Verdict::Pass);
    store.remote().gone.store(true, Ordering::SeqCst);
    assert_eq!(verdict(&store, hold(2, 21)).await, Verdict::Refuse, "30 of a share of 50 are held");
    assert_eq!(verdict(&store, hold(2, 20)).await, Verdict::Pass);
    assert_eq!(verdict(&store, settle(1, 10)).await, Verdict::Pass);
    assert_eq!(verdict(&store, hold(3, 21)).await, Verdict::Refuse, "10 used, 20 held");
    assert_eq!(verdict(&store, hold(3, 20)).await, Verdict::Pass);
}

/// Without the store, the rule says what becomes of a hold. A settle passes in any case.
#[tokio::test]
async fn on_store_failure_decides_a_hold_and_never_a_settle() {
    for (failure, expected) in [
        (OnStoreFailure::Allow, Some(Verdict::Pass)),
        (OnStoreFailure::Deny, Some(Verdict::Refuse)),
        (OnStoreFailure::Error, None),
    ] {
        let store = fallback(1);
        let limit = reserved(&window(100, failure), 60);
        store.remote().gone.store(true, Ordering::SeqCst);
        let (op, holder) = (Op::Hold { cost: Hits(500), ttl_secs: 60 }, Some(Holder(1)));
        let hold = Check { op, holder, ..take(1, &limit, 1) };
        let settle = Check { op: Op::Settle { cost: Hits(5) }, role: Role::Shadow, ..hold };
        for (check, expected) in [(hold, expected), (settle, Some(Verdict::Pass))] {
            let answers = store.apply(&call(&[check], NOW)).await;
            assert_eq!(answers.each[0].verdict(), expected, "{failure:?}");
        }
    }
}

fn used(store: &MemoryStore, identity: u128, limit: &Arc<Limit>, now: Micros) -> u64 {
    let peek = Check { op: Op::PEEK, ..take(identity, limit, 1) };
    limit.capacity().0 - store.decide_one(&peek, now).available.0
}

/// How many single hits pass.
async fn admitted(
    store: &Arc<Stack<FlakyStore, MemoryStore>>,
    limit: &Arc<Limit>,
    tries: u64,
    now: Micros,
) -> u64 {
    let mut admitted = 0;
    for _ in 0..tries {
        let answers = store.apply(&call(&[take(1, limit, 1)], now)).await;
        admitted += u64::from(answers.each[0].outcome().unwrap().verdict == Verdict::Pass);
    }
    admitted
}

#[tokio::test]
async fn switching_over_grants_no_fresh_burst() {
    for limit in [window(100, OnStoreFailure::Local), bucket(100, 1_000_000)] {
        let store = fallback(1);
        assert_eq!(admitted(&store, &limit, 60, NOW).await, 60);
        store.remote().gone.store(true, Ordering::SeqCst);
        assert_eq!(admitted(&store, &limit, 100, NOW).await, 40, "{:?}", limit.algorithm);
    }
}

#[tokio::test]
async fn a_window_with_outages_admits_at_most_twice_the_limit_because_nothing_is_carried_back() {
    let limit = window(100, OnStoreFailure::Local);
    // Away first: the store knows nothing of what passed meanwhile. That is the worst case.
    let store = fallback(1);
    store.remote().gone.store(true, Ordering::SeqCst);
    assert_eq!(admitted(&store, &limit, 150, NOW).await, 100);
    store.remote().gone.store(false, Ordering::SeqCst);
    assert_eq!(admitted(&store, &limit, 150, NOW).await, 100);
    // However often it goes and comes.
    let (store, mut sum) = (fallback(1), 0);
    for round in 0..40 {
        store.remote().gone.store(round % 2 == 0, Ordering::SeqCst);
        sum += admitted(&store, &limit, 7, NOW).await;
    }
    assert!((100..=200).contains(&sum), "{sum}");
}

#[tokio::test]
async fn a_replica_admits_its_share_alone_and_at_least_one() {
    for (whole, replicas, share) in [(100, 3, 33), (2, 3, 1), (0, 3, 0), (7, 1, 7)] {
        let store = fallback(replicas);
        store.remote().gone.store(true, Ordering::SeqCst);
        let limit = window(whole, OnStoreFailure::Local);
        assert_eq!(admitted(&store, &limit, 150, NOW).await, share, "{whole} over {replicas}");
    }
}

#[tokio::test]
async fn a_replica_that_used_more_than_its_share_begins_with_nothing_left() {
    let store = fallback(2);
    for limit in [window(10, OnStoreFailure::Local), bucket(10, 1_000_000)] {
        store.remote().gone.store(false, Ordering::SeqCst);
        let seven = take(7, &limit, 7);
        assert_eq!(verdict(&store, seven).await, Verdict::Pass);
        store.remote().gone.store(true, Ordering::SeqCst);
        assert_eq!(verdict(&store, take(7, &limit, 1)).await, Verdict::Refuse);
    }
    let limit = bucket(10, 1_000_000);
    let at = |seconds| NOW.saturating_add(Micros::from_secs(seconds));
    let passes = async |at: Micros| {
        let checks = [take(7, &limit, 1)];
        let answers = store.apply(&call(&checks, at)).await;
        answers.each[0].outcome().unwrap().verdict == Verdict::Pass
    };
    assert!(!passes(at(1)).await, "half the rate: a hit every two seconds");
    assert!(passes(at(2)).await);
    assert_eq!(store.local().stats().clock_regressions.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_replica_enforces_the_blocks_that_it_has_seen_or_begun() {
    let store = fallback(3);
    let limit = limits::blocking(&bucket(1, 1_000_000), 600);
    let wait_at = async |seconds| {
        let now = NOW.saturating_add(Micros::from_secs(seconds));
        let answers = store.apply(&call(&[take(7, &limit, 1)], now)).await;
        answers.each[0].outcome().unwrap().retry_after.map(Micros::ceil_secs)
    };
    assert_eq!((wait_at(0).await, wait_at(0).await), (None, Some(600)));
    store.remote().gone.store(true, Ordering::SeqCst);
    assert_eq!(wait_at(300).await, Some(300), "begun by the store");
    assert_eq!((wait_at(600).await, wait_at(601).await), (None, Some(600)), "begun here");
    store.remote().gone.store(false, Ordering::SeqCst);
    assert_eq!(wait_at(610).await, None, "the store knows nothing of it");
    store.remote().gone.store(true, Ordering::SeqCst);
    assert_eq!(wait_at(700).await, Some(501));
}

#[tokio::test]
async fn a_limit_that_callers_return_hits_to_is_returned_to_locally_too() {
    let store = fallback(1);
    let limit = window(10, OnStoreFailure::Local);
    assert_eq!(admitted(&store, &limit, 10, NOW).await, 10);
    let refund = Check { op: Op::Refund { cost: Hits(4) }, ..take(1, &limit, 1) };
    store.apply(&call(&[refund], NOW)).await;
    store.remote().gone.store(true, Ordering::SeqCst);
    assert_eq!(admitted(&store, &limit, 10, NOW).await, 4);
    store.apply(&call(&[refund], NOW)).await;
    assert_eq!(admitted(&store, &limit, 10, NOW).await, 4, "and while the store is gone");
}

/// The fallback's table is full before the outage begins.
#[tokio::test]
async fn a_flood_before_an_outage_leaves_local_decisions_local() {
    let limit_of = |limit_id, hits| {
        let limit = window(hits, OnStoreFailure::Local);
        Arc::new(Limit { limit_id, ..Limit::clone(&limit) })
    };
    let flooded: Vec<_> = (10..22).map(|id| limit_of(id, 5)).collect();
    let other = limit_of(3, 5);
    let store = fallback(1);
    // An odd factor spreads the bits as a hash would.
    let key = |n: u128| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let passes = async |identity, limit| {
        verdict(&store, take(key(identity), limit, 1)).await == Verdict::Pass
    };
    for n in 1..=12_000 {
        passes(n, &flooded[n as usize / 1_001]).await;
    }
    store.remote().gone.store(true, Ordering::SeqCst);
    let (mut of_flooded, mut of_other) = (0, 0);
    for n in 100_000..100_500 {
        of_flooded += u64::from(!passes(n, &flooded[n as usize % 12]).await);
        of_other += u64::from(!passes(n + 100_000, &other).await);
    }
    assert!(of_flooded <= 5, "{of_flooded} of 500 refused");
    assert_eq!(of_other, 0);
}

#[tokio::test]
async fn each_rule_says_what_its_silence_means() {
    let store = fallback(1);
    store.remote().gone.store(true, Ordering::SeqCst);
    assert_eq!(verdict(&store, take(1, &window(5, OnStoreFailure::Local), 1)).await, Verdict::Pass);
    assert_eq!(verdict(&store, take(2, &window(0, OnStoreFailure::Allow), 1)).await, Verdict::Pass);
    let allow = window(5, OnStoreFailure::Allow);
    let answers = store.apply(&call(&[take(2, &allow, 1)], NOW)).await;
    assert_eq!(answers.each[0].outcome().unwrap().available, Hits(5), "none is known to be used");
    let deny = window(5, OnStoreFailure::Deny);
    let answers = store.apply(&call(&[take(3, &deny, 1)], NOW)).await;
    let outcome = answers.each[0].outcome().unwrap();
    assert_eq!(outcome.verdict, Verdict::Refuse);
    assert_eq!(outcome.retry_after, Some(Micros::SECOND));
    assert_eq!(answers.source, Source::Local);
    let error = window(5, OnStoreFailure::Error);
    let answers = store.apply(&call(&[take(4, &error, 1)], NOW)).await;
    assert_eq!(answers.each, [Answer::Unanswered { executed: ExecutionStatus::NotExecuted }]);
    assert_eq!(store.outages().calls(FailureKind::NotConnected), 5);
    assert_eq!(store.stats().unavailable.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_call_rejected_for_its_silence_is_counted_once_and_each_of_its_refunds() {
    let store = fallback(1);
    let (limit, deny) = (window(5, OnStoreFailure::Local), window(5, OnStoreFailure::Deny));
    *store.remote().silent.lock().unwrap() = vec![(2, ExecutionStatus::Unknown)];
    let checks = [take(1, &limit, 2), take(2, &limit, 3), take(3, &deny, 1)];
    store.apply(&call(&checks, NOW)).await;
    let stats = store.stats();
    let calls = [&stats.admitted, &stats.refused, &stats.unavailable];
    assert_eq!(calls.map(|count| count.load(Ordering::SeqCst)), [0, 1, 0]);
    let refunds = [&stats.refunded, &stats.refunds_lost];
    assert_eq!(refunds.map(|count| count.load(Ordering::SeqCst)), [2, 0]);
}

#[tokio::test]
async fn a_call_counts_as_late_if_any_of_its_checks_may_have_been_carried_out() {
    let store = fallback(1);
    let limit = window(5, OnStoreFailure::Local);
    *store.remote().silent.lock().unwrap() =
        vec![(0, ExecutionStatus::NotExecuted), (1, ExecutionStatus::Unknown)];
    store.apply(&call(&[take(1, &limit, 1), take(2, &limit, 1)], NOW)).await;
    assert_eq!(store.outages().calls(FailureKind::TimedOut), 1);
    assert_eq!(store.outages().calls(FailureKind::NotConnected), 0);
}

#[tokio::test]
async fn a_quota_that_passed_elsewhere_is_enough() {
    let store = fallback(1);
    let (one, other) = (window(5, OnStoreFailure::Local), window(0, OnStoreFailure::Local));
    *store.remote().silent.lock().unwrap() =
        vec![(1, ExecutionStatus::NotExecuted), (2, ExecutionStatus::NotExecuted)];
    let quota =
        |number, limit| Check { role: Role::Quota(number), ..take(u128::from(number), limit, 1) };
    let checks = [quota(1, &one), quota(2, &other), take(3, &one, 1)];
    let answers = store.apply(&call(&checks, NOW)).await;
    let charged: Vec<u64> = answers.each.iter().map(|a| a.outcome().unwrap().charged.0).collect();
    assert_eq!(charged, [1, 0, 1]);
}

#[tokio::test]
async fn a_rehearsal_asks_the_store_nothing_until_it_is_over() {
    let store = fallback(1);
    let limit = window(10, OnStoreFailure::Local);
    store.disable_store(None);
    assert_eq!(admitted(&store, &limit, 3, NOW).await, 3);
    assert_eq!(used(&store.remote().store, 1, &limit, NOW), 0);
    assert_eq!(store.outages().calls(FailureKind::Rehearsed), 3);
    store.enable_store();
    let after = NOW.saturating_add(Micros::SECOND);
    assert_eq!(admitted(&store, &limit, 1, after).await, 1);
    assert_eq!(used(&store.remote().store, 1, &limit, after), 1);
    store.disable_store(None);
    admitted(&store, &limit, 1, after).await;
    store.enable_store();
    admitted(&store, &limit, 1, after).await;
    assert_eq!(used(&store.remote().store, 1, &limit, after), 2);
}

/// A store with more calls than it can answer in time.
struct BusyStore;

impl Store for BusyStore {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let unanswered = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
        Answers::new(vec![unanswered; call.checks.len()], Source::Shed)
    }

    async fn refund(&self, _: &[Receipt]) {}
}

#[tokio::test]
async fn a_call_that_the_store_sheds_is_counted_apart() {
    let store =
        Stack::new(BusyStore, MemoryStore::new(1_000), StackConfig::default(), Clock::System);
    let limit = window(10, OnStoreFailure::Local);
    let answers = store.apply(&call(&[take(1, &limit, 1)], NOW)).await;
    assert_eq!(answers.source, Source::Shed);
    assert_eq!(store.outages().calls(FailureKind::Overload), 1);
    assert_eq!(store.outages().calls(FailureKind::NotConnected), 0);
}

/// Hits of each counter of a scenario before the call, of a limit of 5.
const USED_BEFORE: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Take,
    /// A take under `charge: always`.
    Debt,
    Peek,
    Refund,
}

#[derive(Clone, Copy, Debug)]
struct Scenario {
    failure: OnStoreFailure,
    role: Role,
    /// Unanswered, and whether it may have been carried out.
    silent: Option<ExecutionStatus>,
    kind: Kind,
    /// Of a limit of 5, of which [`USED_BEFORE`] are used.
    cost: u64,
}

impl Scenario {
    fn limit(&self) -> Arc<Limit> {
        let charge = if self.kind == Kind::Debt { Charge::Always } else { Charge::Admitted };
        Arc::new(Limit { charge, ..Limit::clone(&window(5, self.failure)) })
    }

    fn op(&self) -> Op {
        let cost = Hits(self.cost);
        match self.kind {
            Kind::Take | Kind::Debt => Op::Take { cost },
            Kind::Peek => Op::PEEK,
            Kind::Refund => Op::Refund { cost },
        }
    }

    /// Whether a store that has the counter passes the check.
    fn fits(&self) -> bool {
        match self.kind {
            Kind::Take | Kind::Debt => USED_BEFORE + self.cost <= 5,
            Kind::Peek | Kind::Refund => true,
        }
    }

    /// Hits charged by a store that decides the check, and hits in use there afterwards. `keeps`
    /// says that the charges of the call stay.
    fn effect(&self, keeps: bool) -> (u64, u64) {
        match self.kind {
            Kind::Take if keeps && self.fits() => (self.cost, USED_BEFORE + self.cost),
            Kind::Take | Kind::Peek => (0, USED_BEFORE),
            Kind::Debt => (self.cost, (USED_BEFORE + self.cost).min(5)),
            Kind::Refund => (0, USED_BEFORE.saturating_sub(self.cost)),
        }
    }
}

fn asked() -> impl Strategy<Value = Scenario> {
    use OnStoreFailure::{Allow, Deny, Error, Local};
    let failure =
        prop_oneof![4 => Just(Local), 2 => Just(Allow), 1 => Just(Deny), 1 => Just(Error)];
    let role = prop_oneof![
        4 => Just(Role::Required),
        2 => Just(Role::Quota(0)),
        1 => Just(Role::Quota(1)),
        1 => Just(Role::Shadow),
    ];
    let silent = prop_oneof![
        Just(None),
        Just(Some(ExecutionStatus::NotExecuted)),
        Just(Some(ExecutionStatus::Unknown))
    ];
    let kind = prop_oneof![
        4 => Just(Kind::Take),
        2 => Just(Kind::Debt),
        1 => Just(Kind::Peek),
        1 => Just(Kind::Refund)
    ];
    let cost = prop_oneof![3 => 1..=3_u64, 1 => 4..=6_u64];
    (failure, role, silent, kind, cost).prop_map(|(failure, role, silent, kind, cost)| Scenario {
        failure,
        role,
        silent,
        kind,
        cost,
    })
}

/// What the rules say, told the slow way: `None` is an error.
fn expected(asked: &[Scenario]) -> Option<bool> {
    let shadow = |one: &Scenario| one.role == Role::Shadow;
    let silent = |one: &&Scenario| one.silent.is_some() && !shadow(one);
    if asked.iter().filter(silent).any(|one| one.failure == OnStoreFailure::Error) {
        return None;
    }
    let passes = |one: &Scenario| match (one.silent, one.failure) {
        // The local store makes refunds, whatever the rule says.
        _ if one.kind == Kind::Refund => true,
        (Some(_), OnStoreFailure::Allow) => true,
        (Some(_), OnStoreFailure::Deny) => false,
        _ => one.fits(),
    };
    let required = asked.iter().filter(|one| one.role == Role::Required).all(passes);
    let with = |role: Role| asked.iter().filter(move |one| one.role == role);
    let quotas = [Role::Quota(0), Role::Quota(1)].into_iter();
    let mut quotas = quotas.filter(|role| with(*role).next().is_some()).peekable();
    let no_quota = quotas.peek().is_none();
    Some(required && (no_quota || quotas.any(|role| with(role).all(passes))))
}

fn settled(asked: &[Scenario], accounting: Accounting) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = fallback(1);
        let silent = |(at, one): (usize, &Scenario)| Some((at, one.silent?));
        *store.remote().silent.lock().unwrap() =
            asked.iter().enumerate().filter_map(silent).collect();
        let limits: Vec<_> = asked.iter().map(Scenario::limit).collect();
        let checks: Vec<Check<'_>> = (1..)
            .zip(asked.iter().zip(&limits))
            .map(|(id, (one, limit))| {
                let before = take(id, limit, USED_BEFORE);
                store.remote().store.decide_one(&before, NOW);
                store.local().decide_one(&before, NOW);
                Check { role: one.role, op: one.op(), ..before }
            })
            .collect();
        let answers = store.apply(&Call { accounting, ..call(&checks, NOW) }).await;
        let deciding = |(one, answer): (&Scenario, &Answer)| {
            one.role != Role::Shadow && matches!(answer, Answer::Unanswered { .. })
        };
        let unavailable = asked.iter().zip(&answers.each).any(deciding);
        let expected = expected(asked);
        prop_assert_eq!(unavailable, expected.is_none(), "{:?}", answers);
        let admitted = expected == Some(true);
        // Refunds are on their way in the background.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        for ((one, check), answer) in asked.iter().zip(&checks).zip(&answers.each) {
            let id = check.key.identity;
            let remote = used(&store.remote().store, id, check.limit, NOW);
            let local = used(store.local(), id, check.limit, NOW);
            let keeps = accounting == Accounting::Independent || admitted;
            let (charge, used) = one.effect(keeps);
            let charged = answer.outcome().map_or(0, |outcome| outcome.charged.0);
            let is_local = one.kind == Kind::Refund || one.failure == OnStoreFailure::Local;
            match one.silent {
                None => prop_assert_eq!((remote, local, charged), (used, used, charge)),
                Some(_) if is_local && !unavailable => {
                    prop_assert_eq!((remote, local, charged), (USED_BEFORE, used, charge));
                }
                Some(_) => {
                    prop_assert_eq!((remote, local, charged), (USED_BEFORE, USED_BEFORE, 0));
                }
            }
        }
        let unconfirmed = |one: &&Scenario| {
            let takes = matches!(one.kind, Kind::Take | Kind::Debt);
            takes && one.silent.is_some() && one.role != Role::Shadow
        };
        let unconfirmed: u64 = asked.iter().filter(unconfirmed).map(|one| one.cost).sum();
        let degraded = store.stats().admitted_hits.load(Ordering::SeqCst);
        prop_assert_eq!(degraded, if admitted { unconfirmed } else { 0 });
        let returned = store.remote().refunded.lock().unwrap();
        let unheard = returned.iter().any(|r| asked[r.key.identity as usize - 1].silent.is_some());
        prop_assert!(!unheard, "what nobody heard of was refunded");
        let owed = |r: &Receipt| asked[r.key.identity as usize - 1].kind == Kind::Debt;
        prop_assert!(!returned.iter().any(owed), "a debt was refunded");
        Ok(())
    })
}

proptest! {
    #[test]
    fn whatever_is_unanswered_the_call_follows_its_rules(
        asked in proptest::collection::vec(asked(), 1..7),
        independent in any::<bool>(),
    ) {
        let accounting =
            if independent { Accounting::Independent } else { Accounting::AllOrNothing };
        settled(&asked, accounting)?;
    }
}
