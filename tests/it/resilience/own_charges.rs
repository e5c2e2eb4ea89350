//! A store that loses its counters: what a replica has charged itself still counts here.
//!
//! The remote store here is a memory store that can be emptied; `empty_restarts` uses a real Redis.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Answer, Answers, Call, Charge, Check, ExecutionStatus, Hits, Limit, Micros, Op,
    Receipt, Role, Source, Verdict,
};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::store::memory::MemoryStore;
use tidegate::store::{LocalStore as _, SharedStore, Store};

use super::fallback::take;
use crate::support::limits::{
    HOUR, MINUTE, SECOND, START, always, bucket, call, credits, hybrid, sliding_log,
    sliding_window, slots, window,
};
use crate::support::proof;
use crate::support::random::Random;

/// A store of all replicas that can lose its counters, or be away.
#[derive(Default)]
struct Forgetful {
    counters: Mutex<Option<MemoryStore>>,
    losses: AtomicU64,
    is_away: AtomicBool,
    /// Whether calls are not sent, because their answers would come too late.
    is_busy: AtomicBool,
    asked: AtomicU64,
}

impl Forgetful {
    fn with_counters<T>(&self, use_them: impl FnOnce(&MemoryStore) -> T) -> T {
        let mut counters = self.counters.lock().unwrap();
        use_them(counters.get_or_insert_with(|| MemoryStore::new(10_000)))
    }

    /// Loses the counters, and says so.
    fn lose(&self) {
        self.delete();
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Deletes the counters without a loss, as an operator would.
    fn delete(&self) {
        *self.counters.lock().unwrap() = None;
    }
}

/// The connection of one replica to the store.
struct Remote(Arc<Forgetful>);

impl Store for Remote {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        // As over a network: other calls are decided between a call's start and its decision.
        tokio::task::yield_now().await;
        if call.deadline.is_none() {
            // No caller waits. Loses the charges, as a store would that is asked too late to help.
            let unanswered = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
            return Answers::new(vec![unanswered; call.checks.len()], Source::Redis);
        }
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        if self.0.is_away.load(Ordering::SeqCst) {
            let unanswered = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
            return Answers::new(vec![unanswered; call.checks.len()], Source::Redis);
        }
        if self.0.is_busy.load(Ordering::SeqCst) {
            let unanswered = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
            return Answers::new(vec![unanswered; call.checks.len()], Source::Shed);
        }
        let each = self.0.with_counters(|counters| counters.decide(call));
        tokio::task::yield_now().await;
        Answers::new(each, Source::Redis)
    }

    async fn refund(&self, receipts: &[Receipt]) {
        let counters = self.0.counters.lock().unwrap().take();
        if let Some(counters) = counters {
            counters.refund(receipts).await;
            *self.0.counters.lock().unwrap() = Some(counters);
        }
    }

    fn counter_losses(&self) -> u64 {
        self.0.losses.load(Ordering::SeqCst)
    }
}

impl SharedStore for Remote {
    type Node = ();

    fn nodes(&self) -> Vec<()> {
        Vec::new()
    }

    async fn wait_until_connected(&self) {}

    async fn wait_until_idle(&self) {}

    fn is_available(&self) -> bool {
        true
    }
}

type Replica = Arc<Stack<Remote, MemoryStore>>;

fn replicas(count: u32) -> (Arc<Forgetful>, Vec<Replica>) {
    let store = Arc::<Forgetful>::default();
    let replica = |_| {
        let config =
            StackConfig { replicas: count, refusal_cache: false, ..StackConfig::default() };
        Stack::new(Remote(Arc::clone(&store)), MemoryStore::new(10_000), config, Clock::System)
    };
    let replicas = (0..count).map(replica).collect();
    (store, replicas)
}

async fn answer(replica: &Replica, check: Check<'_>, now: Micros) -> Answer {
    replica.apply(&call(&[check], now)).await.each[0]
}

async fn passes(replica: &Replica, check: Check<'_>, now: Micros) -> bool {
    answer(replica, check, now).await.verdict() == Some(Verdict::Pass)
}

/// How many single hits pass.
async fn admitted(replica: &Replica, limit: &Arc<Limit>, tries: u64, now: Micros) -> u64 {
    let mut admitted = 0;
    for _ in 0..tries {
        admitted += u64::from(passes(replica, take(1, limit, 1), now).await);
    }
    admitted
}

fn limits() -> Vec<Arc<Limit>> {
    vec![
        window(20, HOUR),
        sliding_window(20, HOUR),
        sliding_log(20, HOUR),
        bucket(20, 3 * MINUTE),
        credits(20, 7, 21 * MINUTE),
        hybrid(20, 20, HOUR, &[40, 30, 30], 0),
        always(&window(20, HOUR)),
        always(&bucket(20, 3 * MINUTE)),
    ]
}

#[tokio::test]
async fn what_was_charged_before_a_loss_still_counts_against_the_full_limit() {
    for count in [1, 2] {
        for limit in limits() {
            let (store, replicas) = replicas(count);
            let first = admitted(&replicas[0], &limit, 30, START).await;
            assert!(first > 0 && first <= 20);
            store.lose();
            let left = |more: Answer| more.outcome().unwrap().available;
            let peek = Check { op: Op::PEEK, ..take(1, &limit, 1) };
            assert_eq!(left(answer(&replicas[0], peek, START).await), Hits::ZERO);
            for replica in &replicas[1..] {
                assert_eq!(admitted(replica, &limit, 30, START).await, first, "it charged none");
            }
            assert_eq!(admitted(&replicas[0], &limit, 30, START).await, 0, "{limit:?}");
        }
    }
}

#[tokio::test]
async fn a_charge_before_a_loss_counts_for_one_window_or_until_the_bucket_is_full() {
    for limit in limits().into_iter().take(5) {
        let (store, replicas) = replicas(1);
        let replica = &replicas[0];
        assert_eq!(admitted(replica, &limit, 20, START).await, 20);
        store.lose();
        assert!(!passes(replica, take(1, &limit, 1), START).await);
        let after = START.saturating_add(Micros(2 * HOUR));
        store.delete();
        assert_eq!(admitted(replica, &limit, 20, after).await, 20, "{limit:?}");
        // The loss is over, so Redis alone decides.
        store.delete();
        assert_eq!(admitted(replica, &limit, 20, after).await, 20, "{limit:?}");
    }
}

#[tokio::test]
async fn charges_of_a_sliding_window_before_a_loss_count_until_the_next_window_ends() {
    for count in [1, 2] {
        let (store, replicas) = replicas(count);
        let (replica, limit) = (&replicas[0], sliding_window(20, HOUR));
        assert_eq!(admitted(replica, &limit, 30, START).await, 20);
        store.lose();
        assert!(!passes(replica, take(1, &limit, 1), START).await, "the loss is noticed now");
        // The hits now count as those of the previous window, with a weight that falls to zero.
        for (minutes, more) in [(61, 0), (90, 10)] {
            let now = START.saturating_add(Micros(minutes * MINUTE));
            assert_eq!(admitted(replica, &limit, 30, now).await, more, "after {minutes} minutes");
        }
    }
}

#[tokio::test]
async fn without_a_loss_a_deleted_counter_starts_again() {
    let (store, replicas) = replicas(2);
    let limit = window(5, HOUR);
    for _ in 0..3 {
        assert_eq!(admitted(&replicas[0], &limit, 9, START).await, 5);
        store.delete();
    }
}

#[tokio::test]
async fn resets_and_refunds_clear_own_charges() {
    for count in [1, 2] {
        let (store, replicas) = replicas(count);
        let (replica, limit) = (&replicas[0], window(10, HOUR));
        let refund = |cost| Check { op: Op::Refund { cost: Hits(cost) }, ..take(1, &limit, 1) };
        assert_eq!(admitted(replica, &limit, 20, START).await, 10);
        store.lose();
        answer(replica, refund(4), START).await;
        assert_eq!(admitted(replica, &limit, 20, START).await, 4);
        answer(replica, refund(u64::MAX), START).await;
        assert_eq!(admitted(replica, &limit, 20, START).await, 10);
    }
}

#[tokio::test]
async fn a_refused_check_is_not_sent_and_debts_and_refunds_are() {
    let (store, replicas) = replicas(1);
    let (replica, limit, owed) = (&replicas[0], window(5, HOUR), always(&window(5, HOUR)));
    let other = window(100, HOUR);
    assert_eq!(admitted(replica, &limit, 5, START).await, 5);
    answer(replica, take(2, &owed, 5), START).await;
    answer(replica, take(3, &other, 9), START).await;
    store.lose();
    let asked = || store.asked.load(Ordering::SeqCst);
    let before = asked();
    assert!(!passes(replica, take(1, &limit, 1), START).await);
    assert_eq!(asked(), before, "the store is not asked");
    // The second check would pass, but the call is rejected: it is neither asked nor charged.
    let checks = [take(1, &limit, 1), take(3, &other, 9)];
    let answers = replica.apply(&call(&checks, START)).await;
    assert_eq!((answers.each[1].outcome(), asked()), (None, before));
    assert_eq!(answers.source, Source::Cached, "Redis is not away");
    assert!(passes(replica, take(3, &other, 91), START).await, "nothing is held back");
    // A debt and a refund take effect although the call is rejected.
    let refund = Check { op: Op::Refund { cost: Hits(90) }, ..take(3, &other, 1) };
    let checks = [take(1, &limit, 1), take(2, &owed, 3), refund];
    let answers = replica.apply(&call(&checks, START)).await;
    let verdicts: Vec<_> = answers.each.iter().map(Answer::verdict).collect();
    assert_eq!(verdicts, [Some(Verdict::Refuse), Some(Verdict::Refuse), Some(Verdict::Pass)]);
    let charged = answers.each[1].outcome().unwrap().charged;
    assert_eq!(charged, Hits(3), "{answers:?}");
    assert!(passes(replica, take(3, &other, 80), START).await);
    let debt = store.with_counters(|counters| {
        counters.decide_one(&Check { op: Op::PEEK, ..take(2, &owed, 1) }, START).available
    });
    assert_eq!(debt, Hits(2), "of the five hits in the store, the debt has taken three");
    assert_eq!(replica.stats().refused_by_own_charges.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn own_charges_count_while_hits_of_unsent_calls_are_charged() {
    for count in [1, 2] {
        for limit in limits() {
            let (store, replicas) = replicas(count);
            let replica = &replicas[0];
            let mut total = admitted(replica, &limit, 5, START).await;
            store.is_busy.store(true, Ordering::SeqCst);
            total += admitted(replica, &limit, 5, START).await;
            store.is_busy.store(false, Ordering::SeqCst);
            let (latest, later) = (Micros(START.0 + SECOND - 1), Micros(START.0 + SECOND));
            total += admitted(replica, &limit, 30, latest).await;
            let whole = MemoryStore::new(10_000);
            let takes_one =
                |_: &u32| whole.decide_one(&take(1, &limit, 1), START).verdict == Verdict::Pass;
            let expected = (0..30).filter(takes_one).count() as u64;
            assert_eq!(total, expected, "{count} replicas, {limit:?}");
            // The store lacks the hits of unsent calls, and decides alone again a second later. Debts
            // have filled it; with two replicas, a hybrid limit admits none of the unsent calls.
            if count == 1 && limit.charge == Charge::Admitted {
                assert!(passes(replica, take(1, &limit, 1), later).await, "{limit:?}");
            }
        }
    }
}

#[tokio::test]
async fn shadow_and_quota_roles_hold_for_own_charges() {
    let (store, replicas) = replicas(1);
    let (replica, limit, other) = (&replicas[0], window(5, HOUR), window(100, HOUR));
    assert_eq!(admitted(replica, &limit, 5, START).await, 5);
    store.lose();
    let with = |role, identity, limit| Check { role, ..take(identity, limit, 1) };
    let verdicts = async |checks: &[Check<'_>]| -> Vec<Option<Verdict>> {
        replica.apply(&call(checks, START)).await.each.iter().map(Answer::verdict).collect()
    };
    let (pass, refuse) = (Some(Verdict::Pass), Some(Verdict::Refuse));
    let shadow = [with(Role::Shadow, 1, &limit), with(Role::Required, 2, &other)];
    assert_eq!(verdicts(&shadow).await, [refuse, pass]);
    let quota = [with(Role::Quota(0), 1, &limit), with(Role::Quota(1), 2, &other)];
    assert_eq!(verdicts(&quota).await, [refuse, pass]);
    let alone = [with(Role::Quota(0), 1, &limit), with(Role::Required, 2, &other)];
    assert_eq!(verdicts(&alone).await, [refuse, None]);
    // Independent accounting charges what passes, whatever refuses.
    let checks = [take(1, &limit, 1), take(2, &other, 1)];
    let independent = Call { accounting: Accounting::Independent, ..call(&checks, START) };
    let answers = replica.apply(&independent).await;
    assert_eq!(answers.each[1].outcome().unwrap().charged, Hits(1));
    let available = answers.each[1].outcome().unwrap().available;
    assert_eq!(available, Hits(97), "three hits were charged");
}

/// The store is empty and would admit them all.
#[tokio::test]
async fn calls_at_the_same_time_do_not_exceed_own_charges() {
    for count in [1, 2] {
        for limit in limits().into_iter().take(5) {
            let (store, replicas) = replicas(count);
            let replica = &replicas[0];
            assert_eq!(admitted(replica, &limit, 15, START).await, 15);
            store.lose();
            let checks = [take(1, &limit, 1)];
            let one = call(&checks, START);
            let all = (0..50).map(|_| replica.apply(&one));
            let answers = futures_util::future::join_all(all).await;
            let pass = |answers: &&Answers| answers.each[0].verdict() == Some(Verdict::Pass);
            assert_eq!(answers.iter().filter(pass).count(), 5, "{count} {limit:?}");
        }
    }
}

#[tokio::test]
async fn slots_are_not_compared_with_own_charges() {
    let (store, replicas) = replicas(1);
    let limit = slots(2, HOUR);
    let hold =
        |holder| Check { holder: Some(tidegate::domain::Holder(holder)), ..take(1, &limit, 1) };
    assert!(passes(&replicas[0], hold(1), START).await);
    assert!(passes(&replicas[0], hold(2), START).await);
    store.lose();
    assert!(passes(&replicas[0], hold(3), START).await);
}

/// Random calls of several replicas to a store that loses its counters and is away at random.
/// `most` is what passes within an hour if nothing is lost.
async fn run(random: &mut Random, limit: &Arc<Limit>, most: u64, count: u32) -> Vec<(Micros, u64)> {
    let (store, replicas) = replicas(count);
    let mut now = START.saturating_add(Micros(random.below(HOUR)));
    let mut admissions: Vec<(Micros, u64)> = Vec::new();
    for _ in 0..300 {
        match random.below(60) {
            0..3 => store.lose(),
            3..6 => {
                store.is_away.fetch_xor(true, Ordering::SeqCst);
            }
            6..20 => now = now.saturating_add(Micros(random.below(10 * SECOND))),
            20..24 => now = now.saturating_add(Micros(random.below(10 * MINUTE))),
            _ => {}
        }
        let replica = &replicas[random.below(u64::from(count)) as usize];
        let check = take(1, limit, 1 + random.below(3));
        if passes(replica, check, now).await {
            admissions.push((now, check.cost().0));
        }
        if random.one_in(10) {
            replicas.iter().for_each(|replica| {
                let _outage = replica.outage(now);
            });
            let said: u64 = replicas.iter().map(|replica| replica.over_admitted_max(now)).sum();
            let window = |at: Micros| at.0 / HOUR;
            let in_window = admissions.iter().filter(|(at, _)| window(*at) == window(now));
            let truth = in_window.map(|(_, cost)| cost).sum::<u64>().saturating_sub(most);
            assert!(said >= truth, "the metric says {said}, {truth} in truth");
        }
    }
    admissions
}

#[tokio::test]
async fn each_replica_admits_at_most_one_more_limit_whatever_is_lost() {
    for seed in 1..=proof::times(8, 250) {
        let mut random = Random::seeded(seed);
        for count in [1, 2, 3] {
            // In any interval of an hour: 20, and for buckets 20 more that refill meanwhile.
            for (limit, most) in [
                (window(20, HOUR), 20),
                (sliding_log(20, HOUR), 20),
                (sliding_window(20, HOUR), 40),
                (bucket(20, 3 * MINUTE), 40),
                (credits(20, 7, 21 * MINUTE), 40),
                (hybrid(20, 20, HOUR, &[40, 30, 30], 0), 40),
            ] {
                let admissions = run(&mut random, &limit, most, count).await;
                let is_aligned = most == 20 && limit == window(20, HOUR);
                for (start, _) in &admissions {
                    let end = Micros(start.0 + HOUR);
                    let is_inside = |at: Micros| match is_aligned {
                        true => at.0 / HOUR == start.0 / HOUR,
                        false => *start <= at && at < end,
                    };
                    let inside = admissions.iter().filter(|(at, _)| is_inside(*at));
                    let sum: u64 = inside.map(|(_, cost)| cost).sum();
                    let bound = most * (u64::from(count) + 1);
                    assert!(sum <= bound, "seed {seed}, {count} replicas: {sum} by {limit:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn what_is_left_after_a_loss_is_told_by_own_charges() {
    let (store, replicas) = replicas(1);
    let (limit, narrow) = (window(20, HOUR), window(1, HOUR));
    assert_eq!(admitted(&replicas[0], &limit, 12, START).await, 12);
    store.lose();
    let left = async |checks: &[Check<'_>]| {
        let answers = replicas[0].apply(&call(checks, START)).await;
        answers.each[0].outcome().unwrap().available
    };
    assert_eq!(left(&[take(1, &limit, 1)]).await, Hits(7), "the store would say 19");
    // Another replica has used up the other limit, so this call charges nothing here either.
    store.with_counters(|counters| counters.decide_one(&take(2, &narrow, 1), START));
    assert_eq!(left(&[take(1, &limit, 1), take(2, &narrow, 1)]).await, Hits(7));
    assert_eq!(left(&[Check { op: Op::PEEK, ..take(1, &limit, 1) }]).await, Hits(7));
}

#[tokio::test]
async fn lost_charges_of_a_shadow_check_exceed_no_limit() {
    let (store, replicas) = replicas(1);
    let (replica, limit) = (&replicas[0], window(20, HOUR));
    let shadow = Check { role: Role::Shadow, ..take(1, &limit, 3) };
    assert!(passes(replica, shadow, START).await);
    assert!(passes(replica, take(2, &limit, 2), START).await);
    store.lose();
    replica.outage(START);
    assert_eq!(replica.over_admitted_max(START), 2, "a limit in shadow mode admits everything");
}

#[tokio::test]
async fn resets_and_waits_after_a_loss_are_told_by_own_charges() {
    let (store, replicas) = replicas(1);
    let (replica, limit, owed) = (&replicas[0], bucket(20, 3 * MINUTE), always(&bucket(5, MINUTE)));
    assert_eq!(admitted(replica, &limit, 12, START).await, 12);
    answer(replica, take(2, &owed, 5), START).await;
    store.lose();
    let passed = *answer(replica, take(1, &limit, 1), START).await.outcome().unwrap();
    assert_eq!(passed.reset_after, Micros(13 * 3 * MINUTE), "the store would say 3 minutes");
    // The store, which is empty, lets the debt pass without a wait.
    let refused = *answer(replica, take(2, &owed, 1), START).await.outcome().unwrap();
    let told = (refused.verdict, refused.retry_after);
    assert_eq!(told, (Verdict::Refuse, Some(Micros(2 * MINUTE))));
}

#[tokio::test]
async fn hits_admitted_without_the_store_are_own_charges_after_a_loss() {
    for (count, share, left) in [(1, 20, 0), (2, 10, 10)] {
        let (store, replicas) = replicas(count);
        let (replica, limit) = (&replicas[0], window(20, HOUR));
        store.is_away.store(true, Ordering::SeqCst);
        assert_eq!(admitted(replica, &limit, 30, START).await, share);
        store.is_away.store(false, Ordering::SeqCst);
        store.lose();
        assert_eq!(admitted(replica, &limit, 30, START).await, left, "{count} replicas");
    }
}

#[tokio::test]
async fn the_bound_of_over_admission_counts_each_hit_once_and_until_it_expires() {
    let (store, replicas) = replicas(1);
    let (replica, limit) = (&replicas[0], window(20, HOUR));
    let at = |after| START.saturating_add(Micros(after));
    let bound = |after| {
        replica.outage(at(after));
        replica.over_admitted_max(at(after))
    };
    assert_eq!(admitted(replica, &limit, 5, START).await, 5);
    assert_eq!(bound(0), 0, "nothing is lost");
    store.lose();
    assert_eq!(bound(HOUR - 1), 5);
    assert_eq!(admitted(replica, &limit, 3, at(HOUR)).await, 3);
    for _ in 0..2 {
        store.lose();
        assert_eq!(bound(HOUR), 8, "a second loss loses no hit again");
    }
    assert_eq!(bound(2 * HOUR - 1), 8);
    assert_eq!(bound(2 * HOUR), 0);
    // Charges that have expired cannot be lost.
    assert_eq!(admitted(replica, &limit, 4, at(2 * HOUR)).await, 4);
    assert_eq!((bound(3 * HOUR), bound(4 * HOUR)), (0, 0));
    store.lose();
    assert_eq!(bound(4 * HOUR), 0);
    store.is_away.store(true, Ordering::SeqCst);
    assert_eq!(admitted(replica, &limit, 2, at(4 * HOUR)).await, 2);
    assert_eq!((bound(5 * HOUR - 1), bound(5 * HOUR)), (2, 0), "the store has not charged two");
}

/// Own charges of one limit reject the call, so the other one is not asked.
#[tokio::test]
async fn a_check_that_is_not_asked_shows_what_the_last_call_left() {
    let store = Arc::<Forgetful>::default();
    let (local, config) = (MemoryStore::new(10_000), StackConfig::default());
    let replica = Stack::new(Remote(Arc::clone(&store)), local, config, Clock::System);
    let (narrow, wide) = (window(2, HOUR), window(5, HOUR));
    let checks = [take(1, &narrow, 2), take(2, &wide, 2)];
    let answers = replica.apply(&call(&checks, START)).await.each;
    assert_eq!(answers[1].outcome().unwrap().available, Hits(3));
    store.lose();
    let answers = replica.apply(&call(&checks, START)).await.each;
    assert_eq!(answers[0].verdict(), Some(Verdict::Refuse), "this replica has charged its limit");
    assert!(matches!(answers[1], Answer::LastKnown { available: Hits(3), .. }), "{answers:?}");
}
