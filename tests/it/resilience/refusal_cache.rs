//! The refusal cache, in front of a memory store that counts the checks it receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Answer, Answers, Call, Charge, Check, Hits, Limit, Micros, Op, Receipt, Role,
    Source, Verdict,
};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::store::memory::MemoryStore;
use tidegate::store::{LocalStore, Store};

use crate::support::limits::{self, SECOND, bucket, credits, floored, key, window};
use crate::support::random::Random;

const START: u64 = limits::START.0;

struct CountingStore {
    store: Arc<MemoryStore>,
    asked: Arc<AtomicU64>,
    refuses_transiently: bool,
}

impl Store for CountingStore {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        self.asked.fetch_add(call.checks.len() as u64, Ordering::Relaxed);
        // A store across a network lets others go on meanwhile.
        tokio::task::yield_now().await;
        self.store.apply(call).await
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.store.refund(receipts).await;
    }

    fn has_transient_refusals(&self, _: &Check<'_>) -> bool {
        self.refuses_transiently
    }
}

struct Bench {
    store: Arc<Stack<CountingStore, MemoryStore>>,
    /// What another process charges, too.
    shared: Arc<MemoryStore>,
    asked: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(false)
    }

    fn with(refuses_transiently: bool) -> Bench {
        let (shared, asked) = (Arc::new(MemoryStore::new(1_000_000)), Arc::default());
        let (store, counted) = (Arc::clone(&shared), Arc::clone(&asked));
        let inner = CountingStore { store, asked: counted, refuses_transiently };
        let (local, config) = (MemoryStore::new(1_000_000), StackConfig::default());
        Bench { store: Stack::new(inner, local, config, Clock::System), shared, asked }
    }

    /// The answers, who gave them, and how many checks the store was asked.
    async fn call(
        &self,
        now: u64,
        accounting: Accounting,
        checks: &[Check<'_>],
    ) -> (Vec<Answer>, Source, u64) {
        self.asked.store(0, Ordering::Relaxed);
        let answers =
            self.store.apply(&Call { checks, accounting, now: Micros(now), deadline: None }).await;
        (answers.each, answers.source, self.asked.load(Ordering::Relaxed))
    }

    /// One check: its verdict, wait, and whether the store was asked.
    async fn one(&self, now: u64, check: Check<'_>) -> (Verdict, Option<u64>, bool) {
        let (answers, _, asked) = self.call(now, Accounting::AllOrNothing, &[check]).await;
        let outcome = answers[0].outcome().unwrap();
        (outcome.verdict, outcome.retry_after.map(|wait| wait.0), asked > 0)
    }
}

/// Who answers a check of the first counter.
async fn source_at(bench: &Bench, limit: &Arc<Limit>, now: u64) -> Source {
    let (checks, accounting) = ([take(1, limit, 1)], Accounting::AllOrNothing);
    let call = Call { checks: &checks, accounting, now: Micros(now), deadline: None };
    bench.store.apply(&call).await.source
}

fn check<'a>(n: u64, limit: &'a Arc<Limit>, op: Op) -> Check<'a> {
    limits::check(key(n), limit, op)
}

fn take<'a>(n: u64, limit: &'a Arc<Limit>, cost: u64) -> Check<'a> {
    check(n, limit, Op::Take { cost: Hits(cost) })
}

#[tokio::test]
async fn a_refused_check_is_refused_again_without_asking() {
    let bench = Bench::new();
    let limit = bucket(1, SECOND / 2);
    assert_eq!(bench.one(START, take(1, &limit, 1)).await, (Verdict::Pass, None, true));
    assert_eq!(bench.one(START, take(1, &limit, 1)).await, (Verdict::Refuse, Some(500_000), true));
    let later = bench.one(START + 100_000, take(1, &limit, 1)).await;
    assert_eq!(later, (Verdict::Refuse, Some(400_000), false), "and the wait is still honest");
    let last = bench.one(START + 499_999, take(1, &limit, 1)).await;
    assert_eq!(last, (Verdict::Refuse, Some(1), false));
    assert_eq!(bench.one(START + 500_000, take(1, &limit, 1)).await, (Verdict::Pass, None, true));
    assert_eq!(bench.store.stats().cached_refusals.load(Ordering::Relaxed), 2);
    assert_eq!(bench.store.stats().cached_calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn after_a_second_the_store_is_asked_again() {
    let bench = Bench::new();
    let limit = window(1, 60 * SECOND);
    bench.one(START, take(1, &limit, 1)).await;
    bench.one(START, take(1, &limit, 1)).await;
    for n in 1..10 {
        let (verdict, wait, asked) = bench.one(START + n * 100_000, take(1, &limit, 1)).await;
        assert_eq!((verdict, asked), (Verdict::Refuse, false));
        assert_eq!(wait, Some(60 * SECOND - n * 100_000));
    }
    assert!(bench.one(START + SECOND, take(1, &limit, 1)).await.2);
    assert!(!bench.one(START + SECOND + 1, take(1, &limit, 1)).await.2, "and remembered again");
}

#[tokio::test]
async fn when_the_second_is_over_one_call_asks_for_all() {
    let bench = Bench::new();
    let limit = window(1, 60 * SECOND);
    bench.one(START, take(1, &limit, 1)).await;
    bench.one(START, take(1, &limit, 1)).await;
    bench.asked.store(0, Ordering::Relaxed);
    let at = |now| source_at(&bench, &limit, now);
    let calls = [at(START + SECOND), at(START + SECOND), at(START + SECOND + 99_999)];
    let sources = futures_util::future::join_all(calls).await;
    assert_eq!(sources, [Source::Memory, Source::Cached, Source::Cached]);
    assert_eq!(bench.asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn nobody_waits_long_for_the_one_who_asks() {
    let bench = Bench::new();
    let limit = window(1, 60 * SECOND);
    bench.one(START, take(1, &limit, 1)).await;
    bench.one(START, take(1, &limit, 1)).await;
    let at = |now| source_at(&bench, &limit, now);
    let calls = [at(START + SECOND), at(START + SECOND + 100_000)];
    let sources = futures_util::future::join_all(calls).await;
    assert_eq!(sources, [Source::Memory; 2], "both asked");
}

#[tokio::test]
async fn once_the_wait_is_over_no_call_is_refused_from_memory() {
    let bench = Bench::new();
    let limit = bucket(2, SECOND / 2);
    bench.one(START, take(1, &limit, 2)).await;
    assert_eq!(bench.one(START, take(1, &limit, 1)).await.1, Some(SECOND / 2));
    let at = |now| source_at(&bench, &limit, now);
    let calls = [at(START + SECOND / 2), at(START + SECOND / 2)];
    let sources = futures_util::future::join_all(calls).await;
    assert_eq!(sources, [Source::Memory; 2], "both asked");
}

#[tokio::test]
async fn a_refusal_from_memory_reports_the_counter_as_the_store_did() {
    let bench = Bench::new();
    let limit = bucket(5, 10 * SECOND);
    bench.one(START, take(1, &limit, 3)).await;
    for (later, from) in [(0, Source::Memory), (100_000, Source::Cached)] {
        let checks = [take(1, &limit, 3)];
        let (answers, source, _) =
            bench.call(START + later, Accounting::AllOrNothing, &checks).await;
        let outcome = answers[0].outcome().unwrap();
        assert_eq!((source, outcome.available), (from, Hits(2)));
        assert_eq!(outcome.retry_after, Some(Micros(10 * SECOND - later)));
        assert_eq!(outcome.reset_after, Micros(30 * SECOND - later));
    }
}

#[tokio::test]
async fn a_refusal_is_not_repeated_under_a_larger_limit_of_the_same_counter() {
    let bench = Bench::new();
    let minute = 60 * SECOND;
    let of = |hits| {
        [
            window(hits, minute),
            limits::calendar(hits, tidegate::domain::Unit::Day, "Europe/Berlin"),
            limits::sliding_window(hits, minute),
            limits::sliding_log(hits, minute),
            bucket(hits, 10 * SECOND),
            limits::credits(hits, 1, 10 * SECOND),
        ]
    };
    for (n, (limit, raised)) in (0..).zip(of(1).iter().zip(&of(2))) {
        bench.one(START, take(n, limit, 1)).await;
        assert_eq!(bench.one(START, take(n, limit, 1)).await.0, Verdict::Refuse);
        assert!(!bench.one(START, take(n, limit, 1)).await.2, "{limit:?}");
        let larger = bench.one(START, take(n, raised, 1)).await;
        assert_eq!(larger, (Verdict::Pass, None, true), "{raised:?}");
    }
}

#[tokio::test]
async fn another_cost_counter_or_limit_is_asked() {
    let bench = Bench::new();
    let (limit, raised) = (bucket(5, 10 * SECOND), bucket(9, 10 * SECOND));
    bench.one(START, take(1, &limit, 3)).await;
    assert_eq!(bench.one(START, take(1, &limit, 3)).await.0, Verdict::Refuse);
    let again = Arc::new(Limit::clone(&limit));
    assert!(!bench.one(START, take(1, &again, 3)).await.2, "the same numbers are the same limit");
    assert_eq!(bench.one(START, take(2, &limit, 3)).await, (Verdict::Pass, None, true));
    assert_eq!(bench.one(START, take(1, &raised, 3)).await, (Verdict::Pass, None, true));
}

#[tokio::test]
async fn a_refusal_of_a_class_is_not_repeated_to_a_class_with_a_lower_floor() {
    for high in [bucket(5, 10 * SECOND), credits(5, 3, 10 * SECOND)] {
        let low = floored(&high, 4);
        let bench = Bench::new();
        bench.one(START, take(1, &high, 2)).await;
        assert_eq!(bench.one(START, take(1, &low, 1)).await.0, Verdict::Refuse);
        assert_eq!(bench.one(START, take(1, &high, 1)).await, (Verdict::Pass, None, true));
    }
}

#[tokio::test]
async fn a_charge_drops_what_is_remembered_because_the_wait_grows() {
    let bench = Bench::new();
    let limit = bucket(5, 10 * SECOND);
    bench.one(START, take(1, &limit, 3)).await;
    let refused = bench.one(START, take(1, &limit, 3)).await;
    assert_eq!(refused, (Verdict::Refuse, Some(10 * SECOND), true));
    assert_eq!(bench.one(START, take(1, &limit, 1)).await, (Verdict::Pass, None, true));
    let refused = bench.one(START, take(1, &limit, 3)).await;
    assert_eq!(refused, (Verdict::Refuse, Some(20 * SECOND), true));
}

#[tokio::test]
async fn peeks_debts_and_what_never_passes_are_not_remembered() {
    let bench = Bench::new();
    let limit = bucket(1, 10 * SECOND);
    bench.one(START, take(1, &limit, 1)).await;
    let debt = Arc::new(Limit { charge: Charge::Always, ..Limit::clone(&limit) });
    for _ in 0..3 {
        let peeked = bench.one(START, check(1, &limit, Op::PEEK)).await;
        assert_eq!(peeked, (Verdict::Refuse, Some(10 * SECOND), true));
        assert!(bench.one(START, take(2, &debt, 3)).await.2);
        assert!(bench.one(START, take(3, &limit, 9)).await.2, "the store counts those");
    }
}

#[tokio::test]
async fn a_refund_seen_here_drops_what_is_remembered() {
    let bench = Bench::new();
    let limit = bucket(2, 10 * SECOND);
    let (answers, ..) = bench.call(START, Accounting::AllOrNothing, &[take(1, &limit, 2)]).await;
    let receipt = Receipt::for_check(&take(1, &limit, 2), answers[0].outcome().unwrap()).unwrap();
    bench.one(START, take(1, &limit, 1)).await;
    assert!(!bench.one(START, take(1, &limit, 1)).await.2);
    bench.one(START, check(1, &limit, Op::Refund { cost: Hits(1) })).await;
    assert_eq!(bench.one(START, take(1, &limit, 1)).await, (Verdict::Pass, None, true));
    bench.one(START, take(1, &limit, 1)).await;
    assert!(!bench.one(START, take(1, &limit, 1)).await.2);
    bench.store.refund(&[receipt]).await;
    assert_eq!(bench.one(START, take(1, &limit, 1)).await, (Verdict::Pass, None, true));
}

#[tokio::test]
async fn a_reload_and_a_clock_that_steps_back_ask_again() {
    let bench = Bench::new();
    let limit = bucket(1, 10 * SECOND);
    bench.one(START, take(1, &limit, 1)).await;
    bench.one(START, take(1, &limit, 1)).await;
    assert!(!bench.one(START, take(1, &limit, 1)).await.2);
    assert!(bench.one(START - 1, take(1, &limit, 1)).await.2);
    bench.store.retire_policy();
    assert!(bench.one(START, take(1, &limit, 1)).await.2);
}

#[tokio::test]
async fn a_counter_that_a_call_touches_twice_is_not_remembered() {
    let bench = Bench::new();
    let limit = bucket(1, 10 * SECOND);
    let twice = [take(1, &limit, 1), take(1, &limit, 1)];
    let (answers, ..) = bench.call(START, Accounting::AllOrNothing, &twice).await;
    assert_eq!(answers[1].outcome().unwrap().verdict, Verdict::Refuse);
    assert_eq!(bench.one(START, take(1, &limit, 1)).await, (Verdict::Pass, None, true));
}

#[tokio::test]
async fn a_call_refused_from_memory_charges_nothing_but_debts_and_refunds() {
    let bench = Bench::new();
    let (narrow, wide) = (bucket(1, 10 * SECOND), bucket(100, 10 * SECOND));
    let debt = Arc::new(Limit { charge: Charge::Always, ..Limit::clone(&wide) });
    bench.one(START, take(1, &narrow, 1)).await;
    bench.one(START, take(1, &narrow, 1)).await;
    bench.one(START, take(3, &wide, 5)).await;
    let checks = [
        take(2, &wide, 1),
        take(1, &narrow, 1),
        check(3, &wide, Op::Refund { cost: Hits(5) }),
        take(4, &debt, 7),
    ];
    let (answers, source, asked) = bench.call(START, Accounting::AllOrNothing, &checks).await;
    assert_eq!((source, asked), (Source::Memory, 2));
    assert_eq!(answers[0], Answer::NotAsked);
    assert_eq!(answers[1].outcome().unwrap().verdict, Verdict::Refuse);
    assert_eq!(answers[2].outcome().unwrap().available, Hits(100));
    assert_eq!(answers[3].outcome().unwrap().charged, Hits(7));
    let (answers, source, asked) = bench.call(START, Accounting::AllOrNothing, &checks[..2]).await;
    assert_eq!((source, asked), (Source::Cached, 0));
    assert_eq!(answers[0], Answer::NotAsked);
}

#[tokio::test]
async fn a_remembered_check_without_a_say_leaves_the_others_theirs() {
    let bench = Bench::new();
    let (narrow, wide) = (bucket(1, 10 * SECOND), bucket(100, 10 * SECOND));
    bench.one(START, take(1, &narrow, 1)).await;
    bench.one(START, take(1, &narrow, 1)).await;
    let refused = take(1, &narrow, 1);
    let shadow = [Check { role: Role::Shadow, ..refused }, take(2, &wide, 1)];
    let (answers, _, asked) = bench.call(START, Accounting::AllOrNothing, &shadow).await;
    assert_eq!(asked, 1);
    assert_eq!(answers[1].outcome().unwrap().charged, Hits(1));
    let quotas = [
        Check { role: Role::Quota(0), ..refused },
        Check { role: Role::Quota(1), ..take(2, &wide, 1) },
    ];
    let (answers, _, asked) = bench.call(START, Accounting::AllOrNothing, &quotas).await;
    assert_eq!((asked, answers[1].outcome().unwrap().charged), (1, Hits(1)));
    let lone = [quotas[0], take(2, &wide, 1)];
    let (answers, source, asked) = bench.call(START, Accounting::AllOrNothing, &lone).await;
    assert_eq!((source, asked), (Source::Cached, 0));
    assert!(matches!(answers[1], Answer::LastKnown { available: Hits(98), .. }), "{answers:?}");
    let independent = [refused, take(2, &wide, 1)];
    let (answers, _, asked) = bench.call(START, Accounting::Independent, &independent).await;
    assert_eq!((asked, answers[1].outcome().unwrap().charged), (1, Hits(1)));
}

#[tokio::test]
async fn many_refused_keys_take_no_more_room_than_a_few_thousand() {
    let bench = Bench::new();
    let limit = bucket(1, 10 * SECOND);
    const KEYS: u64 = 20_000;
    for n in 0..KEYS {
        bench.one(START, take(n, &limit, 1)).await;
        bench.one(START, take(n, &limit, 1)).await;
    }
    let mut remembered = 0;
    for n in 0..KEYS {
        let key = take(n, &limit, 1);
        if !bench.one(START, key).await.2 {
            remembered += 1;
        }
    }
    // Looking again brings a key back in place of another, hence not exactly 4,096.
    assert!((1..KEYS / 2).contains(&remembered), "{remembered}");
}

#[tokio::test]
async fn the_oldest_refusal_makes_room_for_a_new_one() {
    let bench = Bench::new();
    let limit = window(1, 60 * SECOND);
    // The identity selects one of 512 sets, each with room for eight refusals.
    let same_set = |n: &u64| key(*n).identity.is_multiple_of(512);
    let keys: Vec<u64> = (0..).filter(same_set).take(9).collect();
    for (at, n) in (START..).zip(&keys) {
        bench.one(at, take(*n, &limit, 1)).await;
        bench.one(at, take(*n, &limit, 1)).await;
    }
    for n in &keys[1..] {
        assert!(!bench.one(START + 9, take(*n, &limit, 1)).await.2, "{n} is remembered");
    }
    assert!(bench.one(START + 9, take(keys[0], &limit, 1)).await.2, "the oldest one is not");
}

#[tokio::test]
async fn it_never_admits_what_the_store_would_refuse() {
    let bench = Bench::new();
    let plain = MemoryStore::new(1_000);
    let mut seed = 88_172_645_463_325_252_u64;
    let mut below = |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let limits = [bucket(5, 30_000), window(7, SECOND), bucket(3, 400_000)];
    let mut now = START;
    for step in 0..20_000 {
        now += below(60_000);
        let n = below(3);
        let limit = &limits[usize::try_from(n).unwrap()];
        let check = take(n, limit, 1 + below(3));
        let (verdict, wait, _) = bench.one(now, check).await;
        let checks = [check];
        let call = Call {
            checks: &checks,
            accounting: Accounting::AllOrNothing,
            now: Micros(now),
            deadline: None,
        };
        let expected = *plain.apply(&call).await.each[0].outcome().unwrap();
        assert_eq!(verdict, expected.verdict, "step {step}");
        assert_eq!(wait, expected.retry_after.map(|wait| wait.0), "step {step}");
    }
}

#[tokio::test]
async fn the_first_rejection_that_may_be_transient_is_cached_for_50_ms_only() {
    let bench = Bench::with(true);
    let limit = window(1, 60 * SECOND);
    let asks_at = async |micros| bench.one(START + micros, take(1, &limit, 1)).await.2;
    assert!(asks_at(0).await, "the only hit");
    assert!(asks_at(0).await, "the first refusal");
    assert!(!asks_at(49_999).await);
    assert!(asks_at(50_000).await, "the second refusal");
    assert!(!asks_at(1_049_999).await);
    assert!(asks_at(1_050_000).await, "as any other refusal");
    assert!(!asks_at(2_049_999).await);
    // Nobody asks for long, and still it is not the first one in its window.
    assert!(asks_at(30 * SECOND).await);
    assert!(!asks_at(31 * SECOND - 1).await);
    // The next window has a first refusal again.
    assert!(asks_at(60 * SECOND).await && asks_at(60 * SECOND).await);
    assert!(!asks_at(60 * SECOND + 49_999).await);
    assert!(asks_at(60 * SECOND + 50_000).await);
    // A first refusal that nobody repeats for long stays the first one.
    let slow = Bench::with(true);
    let asks_at = async |micros| slow.one(START + micros, take(1, &limit, 1)).await.2;
    assert!(asks_at(0).await && asks_at(0).await);
    assert!(asks_at(20 * SECOND).await, "the second refusal");
    assert!(!asks_at(21 * SECOND - 1).await);
}

/// Other replicas refund the prepaid hits that they do not spend.
#[tokio::test]
async fn the_first_rejection_of_a_prepaid_limit_is_cached_for_50_ms_only() {
    let (bench, limit) = (Bench::new(), limits::prepaid(&window(1, 60 * SECOND)));
    let asks_at = async |micros| bench.one(START + micros, take(1, &limit, 1)).await.2;
    assert!(asks_at(0).await && asks_at(0).await);
    assert!(!asks_at(49_999).await);
    assert!(asks_at(50_000).await, "the second refusal");
    assert!(!asks_at(1_049_999).await);
}

#[tokio::test]
async fn refusals_at_the_same_time_do_not_confirm_each_other() {
    let bench = Bench::with(true);
    let limit = window(1, 60 * SECOND);
    bench.one(START, take(1, &limit, 1)).await;
    let at = |now| source_at(&bench, &limit, now);
    let sources = futures_util::future::join_all([at(START), at(START + 1), at(START + 2)]).await;
    assert_eq!(sources, [Source::Memory; 3], "all asked, and one call's hits may refuse all");
    assert!(!bench.one(START + 50_001, take(1, &limit, 1)).await.2);
    assert!(bench.one(START + 50_002, take(1, &limit, 1)).await.2, "50 ms after the last one");
    assert!(!bench.one(START + 1_050_001, take(1, &limit, 1)).await.2, "and this one is repeated");
}

/// Hits return in any way: a window ends, a bucket refills, another process refunds.
#[tokio::test]
async fn no_call_is_refused_more_than_a_second_after_its_counter_has_room() {
    let limits = [bucket(5, 30_000), window(3, 4 * SECOND), window(2, 3_600 * SECOND)];
    for (seed, refuses_transiently) in [(1, false), (2, true)] {
        let (bench, mut random) = (Bench::with(refuses_transiently), Random::seeded(seed));
        let mut room_since = [None; 3];
        let (mut now, mut cached) = (START, 0);
        for step in 0..20_000 {
            now += random.below(60_000);
            let at = random.below(3);
            let op = match random.below(20) {
                0 => Op::Refund { cost: Hits(1) },
                1 => Op::Take { cost: Hits(1) },
                _ => Op::PEEK,
            };
            let limit = |at: u64| &limits[usize::try_from(at).unwrap()];
            bench.shared.decide_one(&check(at, limit(at), op), Micros(now));
            for (other, since) in (0..).zip(&mut room_since) {
                let peek = check(other, limit(other), Op::PEEK);
                let has_room = bench.shared.decide_one(&peek, Micros(now)).verdict == Verdict::Pass;
                *since = has_room.then_some(since.unwrap_or(now));
            }
            let since = room_since[usize::try_from(at).unwrap()];
            let (verdict, _, asked) = bench.one(now, take(at, limit(at), 1)).await;
            cached += u32::from(!asked);
            match (verdict, since) {
                (Verdict::Pass, since) => assert!(asked && since.is_some(), "step {step}"),
                (Verdict::Refuse, Some(since)) => assert!(now - since < SECOND, "step {step}"),
                (Verdict::Refuse, None) => {}
            }
        }
        assert!(cached > 1_000, "{cached}");
    }
}

#[tokio::test]
async fn a_call_that_does_not_ask_leaves_the_check_with_the_store_to_another() {
    let bench = Bench::new();
    let limits = [window(1, 60 * SECOND), bucket(1, 50_000), window(1, 60 * SECOND)];
    let refuse = async |now, n: usize| {
        bench.one(now, take(n as u64, &limits[n], 1)).await;
        assert_eq!(bench.one(now, take(n as u64, &limits[n], 1)).await.0, Verdict::Refuse);
    };
    refuse(START, 2).await;
    refuse(START + SECOND - 50_000, 1).await;
    refuse(START + SECOND - 50_000, 0).await;
    let now = START + SECOND;
    for other in [1, 2] {
        let checks = [take(other as u64, &limits[other], 1), take(0, &limits[0], 1)];
        let (_, source, asked) = bench.call(now, Accounting::AllOrNothing, &checks).await;
        assert_eq!((source, asked), (Source::Cached, 0));
        assert!(bench.one(now, checks[0]).await.2, "{other} is asked");
    }
}

#[tokio::test]
async fn a_cached_refusal_knows_the_block_and_nobody_prolongs_it() {
    let bench = Bench::new();
    let limit = limits::blocking(&bucket(1, SECOND / 100), 5);
    let one = async |after: u64, check| bench.one(START + after, check).await;
    let take = take(1, &limit, 1);
    assert_eq!(one(0, take).await, (Verdict::Pass, None, true));
    assert_eq!(one(0, take).await, (Verdict::Refuse, Some(5 * SECOND), true));
    assert_eq!(one(900_000, take).await, (Verdict::Refuse, Some(4_100_000), false));
    // Another process asks, too.
    let there = bench.shared.decide_one(&take, Micros(START + 2 * SECOND));
    assert_eq!((there.verdict, there.retry_after), (Verdict::Refuse, Some(Micros(3 * SECOND))));
    assert_eq!(one(4 * SECOND, take).await, (Verdict::Refuse, Some(SECOND), true));
    assert_eq!(one(4_999_999, take).await, (Verdict::Refuse, Some(1), false));
    assert_eq!(one(5 * SECOND, take).await, (Verdict::Pass, None, true));
    assert_eq!(one(5 * SECOND, take).await, (Verdict::Refuse, Some(5 * SECOND), true));
    one(6 * SECOND - 1, Check { op: Op::RESET, ..take }).await;
    assert_eq!(one(6 * SECOND - 1, take).await, (Verdict::Pass, None, true), "a reset lifts it");
}
