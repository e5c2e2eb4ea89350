//! Calls over several cluster slots: planning and refunding, on one server that plays many; and a
//! real cluster refuses keys of different slots in one script.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::domain::{
    Accounting, Algorithm, Answer, Call, Check, Hits, Limit, Micros, Outcome, Role, Verdict,
};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::transport::{NodeRequests, PendingCalls, Transport};
use tidegate::store::redis::script::arguments::Encoder;
use tidegate::store::redis::script::call::NodeRequest;
use tidegate::store::redis::script::keys::{Prefix, counter_slot};
use tidegate::store::redis::script::library::{STRICT, ScriptCall};
use tidegate::store::redis::store::TimeSource;

use super::window_and_buckets;
use crate::support::limits::*;
use crate::support::plain_transport::Plain;
use crate::support::redis_server::Server;
use crate::support::script_bench::encode_call;

/// One server that claims to be a cluster, and counts rounds and items.
struct Sliced {
    plain: Plain,
    rounds: Arc<AtomicU64>,
    items: Arc<AtomicU64>,
    posted: Arc<tokio::sync::Semaphore>,
}

impl Transport for Sliced {
    fn is_cluster(&self) -> bool {
        true
    }

    fn submit(&self, items: NodeRequests) -> PendingCalls {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.items.fetch_add(items.len() as u64, Ordering::Relaxed);
        let items: Vec<ScriptCall> = items.into_iter().map(NodeRequest::into_script_call).collect();
        assert!(items.iter().all(|item| item.slot.is_some()), "every item names its slot");
        self.plain.submit(items.into_iter().map(NodeRequest::from).collect())
    }

    fn send_in_background(&self, item: ScriptCall) {
        let (plain, posted) = (self.plain.clone(), Arc::clone(&self.posted));
        tokio::spawn(async move {
            plain.run(&item).await.unwrap();
            posted.add_permits(1);
        });
    }
}

struct Cluster {
    store: RedisStore<Sliced>,
    _server: Server,
}

impl Cluster {
    async fn new() -> Cluster {
        let server = Server::start(&[]);
        let sliced = Sliced {
            plain: Plain(server.connect().await),
            rounds: Arc::default(),
            items: Arc::default(),
            posted: Arc::new(tokio::sync::Semaphore::new(0)),
        };
        Cluster {
            store: RedisStore::new(sliced, Prefix::default(), TimeSource::Call),
            _server: server,
        }
    }

    async fn call(&self, checks: &[Check<'_>], accounting: Accounting) -> Vec<Answer> {
        self.store.apply(&Call { checks, accounting, now: START, deadline: None }).await.each
    }

    async fn all(&self, checks: &[Check<'_>]) -> Vec<Answer> {
        self.call(checks, Accounting::AllOrNothing).await
    }

    async fn left(&self, key: tidegate::domain::CounterKey, limit: &Arc<Limit>) -> u64 {
        self.all(&[peek(key, limit)]).await[0].outcome().unwrap().available.0
    }

    /// Rounds and items since the last look.
    fn traffic(&self) -> (u64, u64) {
        let sliced = self.store.transport();
        (sliced.rounds.swap(0, Ordering::Relaxed), sliced.items.swap(0, Ordering::Relaxed))
    }

    /// Waits until that many refunds have been carried out.
    async fn refunded(&self, items: u32) {
        let wait = self.store.transport().posted.acquire_many(items);
        let within = std::time::Duration::from_secs(20);
        tokio::time::timeout(within, wait).await.expect("refunded").unwrap().forget();
    }
}

fn outcome(answer: &Answer) -> &Outcome {
    answer.outcome().expect("decided")
}

fn with_role(role: Role, check: Check<'_>) -> Check<'_> {
    Check { role, ..check }
}

#[tokio::test]
async fn far_from_any_limit_a_call_is_one_round() {
    let cluster = Cluster::new().await;
    let limit = bucket(1_000, SECOND);
    let checks: Vec<_> = (0..10).map(|n| take(key(n), &limit, 1)).collect();
    for _ in 0..5 {
        let answers = cluster.all(&checks).await;
        assert!(answers.iter().all(|answer| outcome(answer).charged == Hits(1)));
        assert_eq!(cluster.traffic(), (1, 10));
    }
}

#[tokio::test]
async fn checks_that_share_a_tag_are_one_script_call() {
    let cluster = Cluster::new().await;
    let limit = bucket(1_000, SECOND);
    let checks: Vec<_> = (0..10).map(|n| take(tagged(n, n % 2), &limit, 1)).collect();
    cluster.all(&checks).await;
    assert_eq!(cluster.traffic(), (1, 2));
    cluster.all(&[checks[0], checks[2]]).await;
    assert_eq!(cluster.traffic(), (1, 1));
}

/// The stored values, too: a log keeps no entry of the refused call, and each of a class's share and
/// the pool gets its own hits back.
#[tokio::test]
async fn a_refused_call_leaves_shares_pools_and_logs_as_they_were() {
    let cluster = Cluster::new().await;
    let (gold, log) = (hybrid(10, 600, MINUTE, &[60, 20], 0), sliding_log(4, HOUR));
    let none = window(1, HOUR);
    cluster.all(&[take(key(1), &gold, 5), take(key(2), &log, 1)]).await;
    let texts = [(1, &gold), (2, &log), (3, &log)]
        .map(|(n, limit)| Prefix::default().key(&key(n), &limit.algorithm).to_vec());
    let stored = async || -> Vec<Option<Vec<u8>>> {
        let mut read = redis::cmd("MGET");
        read.arg(&texts).query_async(&mut cluster.store.transport().plain.0.clone()).await.unwrap()
    };
    let before = stored().await;
    for n in 4..7 {
        let refuses = take(key(n), &none, 2);
        let [gold, known, new] =
            [take(key(1), &gold, 3), take(key(2), &log, 1), take(key(3), &log, 1)];
        let refused = cluster.all(&[gold, known, new, refuses]).await;
        assert_eq!(outcome(&refused[3]).verdict, Verdict::Refuse);
        cluster.refunded(3).await;
        assert_eq!(stored().await, before);
    }
}

#[tokio::test]
async fn what_was_granted_to_a_refused_call_is_refunded() {
    for wide in window_and_buckets(1_000) {
        let cluster = Cluster::new().await;
        let narrow = bucket(1, HOUR);
        let checks = [take(key(1), &wide, 3), take(key(2), &narrow, 2), take(key(3), &wide, 1)];
        let answers = cluster.all(&checks).await;
        assert_eq!(cluster.traffic().0, 1);
        assert_eq!(outcome(&answers[1]).verdict, Verdict::Refuse);
        for at in [0, 2] {
            assert_eq!(outcome(&answers[at]).verdict, Verdict::Pass);
            assert_eq!(outcome(&answers[at]).charged, Hits(0));
            assert_eq!(outcome(&answers[at]).available, Hits(1_000));
        }
        cluster.refunded(2).await;
        assert_eq!(cluster.left(key(1), &wide).await, 1_000);
        assert_eq!(cluster.left(key(3), &wide).await, 1_000);
    }
}

#[tokio::test]
async fn debts_and_refunds_take_effect_though_another_slot_refuses() {
    let cluster = Cluster::new().await;
    let (narrow, wide) = (bucket(1, HOUR), bucket(10, HOUR));
    let debt = always(&wide);
    cluster.all(&[take(key(1), &narrow, 1), take(key(2), &wide, 4)]).await;
    let checks = [
        take(key(1), &narrow, 1),
        refund(key(2), &wide, 3),
        take(key(3), &debt, 2),
        take(key(4), &wide, 2),
    ];
    let answers = cluster.all(&checks).await;
    assert_eq!(outcome(&answers[0]).verdict, Verdict::Refuse);
    assert_eq!(outcome(&answers[2]).charged, Hits(2));
    assert_eq!(outcome(&answers[3]).charged, Hits(0));
    cluster.refunded(1).await;
    assert_eq!(cluster.left(key(2), &wide).await, 9);
    assert_eq!(cluster.left(key(3), &debt).await, 8);
    assert_eq!(cluster.left(key(4), &wide).await, 10);
}

#[tokio::test]
async fn quota_checks_in_different_slots_are_settled_together() {
    let cluster = Cluster::new().await;
    let (empty, wide) = (bucket(0, HOUR), bucket(100, HOUR));
    let refusing = with_role(Role::Quota(0), take(key(1), &empty, 1));
    let quota = with_role(Role::Quota(1), take(key(2), &wide, 1));
    let required = take(key(3), &wide, 1);
    // Admitted by the other slot's quota check: so the required one beside the refusing one counts.
    let answers = cluster.all(&[refusing, quota, required]).await;
    assert_eq!(outcome(&answers[1]).charged, Hits(1));
    assert_eq!(outcome(&answers[2]).charged, Hits(1));
    // Refused by all of them: then it does not.
    let answers = cluster.all(&[refusing, required]).await;
    assert_eq!(outcome(&answers[1]).charged, Hits(0));
    cluster.refunded(1).await;
    assert_eq!(cluster.left(key(3), &wide).await, 99);
}

#[tokio::test]
async fn independent_checks_are_charged_in_one_round_and_kept() {
    let cluster = Cluster::new().await;
    let (narrow, wide) = (bucket(1, HOUR), bucket(100, HOUR));
    let checks = [take(key(1), &narrow, 1), take(key(2), &wide, 1)];
    for n in 1..=3 {
        cluster.call(&checks, Accounting::Independent).await;
        assert_eq!(cluster.traffic(), (1, 2));
        assert_eq!(cluster.left(key(2), &wide).await, 100 - n);
        cluster.traffic();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_calls_over_slots_never_pass_a_limit_and_return_what_they_held() {
    let cluster = Arc::new(Cluster::new().await);
    let (narrow, wide) = (bucket(100, HOUR), bucket(5_000, HOUR));
    let admitted = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (cluster, admitted) = (Arc::clone(&cluster), Arc::clone(&admitted));
            let (narrow, wide) = (Arc::clone(&narrow), Arc::clone(&wide));
            tokio::spawn(async move {
                for _ in 0..20 {
                    let checks = [take(key(1), &wide, 1), take(key(2), &narrow, 1)];
                    let answers = cluster.all(&checks).await;
                    let passes = |answer: &Answer| {
                        answer.outcome().is_some_and(|outcome| outcome.verdict == Verdict::Pass)
                    };
                    admitted.fetch_add(answers.iter().all(passes).into(), Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let refunded = cluster.store.stats().refunded.load(Ordering::Relaxed);
    cluster.refunded(u32::try_from(refunded).unwrap()).await;
    assert_eq!(admitted.load(Ordering::Relaxed), 100, "the narrow one alone decides");
    assert_eq!(cluster.left(key(2), &narrow).await, 0);
    assert_eq!(cluster.left(key(1), &wide).await, 4_900, "what was held came back");
}

#[tokio::test]
async fn a_cluster_runs_what_a_tag_joins_and_refuses_what_none_does() {
    let server = Server::start(&["cluster-enabled yes"]);
    let mut connection = server.connect().await;
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("ADDSLOTSRANGE").arg(0).arg(16_383).exec_async(&mut connection).await.unwrap();
    let ready = async {
        loop {
            let info: String =
                redis::cmd("CLUSTER").arg("INFO").query_async(&mut connection).await.unwrap();
            if info.contains("cluster_state:ok") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), ready).await.expect("cluster is up");
    let plain = Plain(server.connect().await);
    let encoder = Encoder::new(Prefix::default(), &STRICT, true);
    let limits = window_and_buckets(5);
    let checks = |joined: bool| -> Vec<Check<'_>> {
        let key = |n: u64| if joined { tagged(n, 7) } else { key(n) };
        limits.iter().enumerate().map(|(n, limit)| take(key(n as u64), limit, 1)).collect()
    };
    let joined = encode_call(
        &encoder,
        &checks(true),
        Accounting::AllOrNothing,
        Some(Micros(START.0)),
        START,
    );
    assert_eq!(joined.slot, Some(counter_slot(&tagged(0, 7))));
    plain.run(&joined).await.unwrap();
    let apart = encode_call(
        &encoder,
        &checks(false),
        Accounting::AllOrNothing,
        Some(Micros(START.0)),
        START,
    );
    let error = plain.run(&apart).await.unwrap_err();
    assert_eq!(error.code(), Some("CROSSSLOT"), "{error}");
}

/// Limits of every algorithm, with room for a few hits.
fn every_limit() -> Vec<Arc<Limit>> {
    vec![
        window(10, HOUR),
        calendar(10, tidegate::domain::Unit::Day, "UTC"),
        sliding_window(10, HOUR),
        sliding_log(10, HOUR),
        bucket(10, MINUTE),
        credits(10, 7, HOUR),
        floored(&bucket(10, MINUTE), 6),
        floored(&credits(10, 7, HOUR), 9),
        hybrid(10, 7, HOUR, &[30, 20], 1),
        slots(10, HOUR),
    ]
}

fn held(check: Check<'_>, holder: u128) -> Check<'_> {
    Check { holder: Some(tidegate::domain::Holder(holder)), ..check }
}

#[tokio::test]
async fn the_status_of_a_refunded_check_is_that_of_before_and_of_after() {
    for limit in every_limit().into_iter().flat_map(|limit| [always(&limit), limit]) {
        for times in [1, 2] {
            let cluster = Cluster::new().await;
            let narrow = bucket(1, HOUR);
            // A receipt of a hybrid class does not know which hits came from the pool.
            let is_exact = !matches!(limit.algorithm, Algorithm::Hybrid(_));
            cluster.all(&[held(take(key(1), &limit, 1), 1)]).await;
            let status = async || {
                let answers = cluster.all(&[peek(key(1), &limit)]).await;
                (outcome(&answers[0]).available, outcome(&answers[0]).reset_after)
            };
            let before = status().await;
            let charges = [held(take(key(1), &limit, 2), 2), held(take(key(1), &limit, 1), 3)];
            let checks = [&charges[..times], &[take(key(2), &narrow, 2)]].concat();
            let answers = cluster.all(&checks).await;
            assert_eq!(outcome(&answers[times]).verdict, Verdict::Refuse);
            let refunded = cluster.store.stats().refunded.load(Ordering::Relaxed);
            cluster.refunded(u32::from(refunded > 0)).await;
            let after = status().await;
            let is_debt = checks[0].charges_always();
            assert_eq!(before.0 == after.0, !is_debt, "{limit:?}: {before:?} {after:?}");
            let expected = if is_debt { after } else { before };
            assert!(expected == after || !is_exact, "{limit:?}: {before:?} {after:?}");
            for answer in &answers[..times] {
                let told = (outcome(answer).available, outcome(answer).reset_after);
                assert_eq!(told, expected, "{limit:?}, {times} times");
                assert_eq!(outcome(answer).charged > Hits::ZERO, is_debt);
            }
        }
    }
}

#[tokio::test]
async fn a_refused_renewal_leaves_the_slots_in_flight_as_they_were() {
    for times in [1, 2] {
        let cluster = Cluster::new().await;
        let (slots, narrow) = (slots(5, HOUR), bucket(1, HOUR));
        cluster.all(&[held(take(key(1), &slots, 4), 1)]).await;
        let renewals = [held(take(key(1), &slots, 1), 1), held(take(key(1), &slots, 2), 1)];
        let checks = [&renewals[..times], &[take(key(2), &narrow, 2)]].concat();
        let answers = cluster.all(&checks).await;
        assert_eq!(outcome(&answers[times]).verdict, Verdict::Refuse);
        cluster.refunded(1).await;
        assert_eq!(cluster.left(key(1), &slots).await, 1, "four are in flight");
    }
}

#[tokio::test]
async fn a_quota_check_that_refuses_in_one_slot_does_not_undo_the_others_there() {
    let cluster = Cluster::new().await;
    let (wide, narrow) = (window(100, HOUR), window(1, HOUR));
    cluster.all(&[take(tagged(2, 7), &narrow, 1)]).await;
    let checks = [
        take(tagged(1, 7), &wide, 1),
        with_role(Role::Quota(0), take(tagged(2, 7), &narrow, 1)),
        with_role(Role::Quota(1), take(tagged(3, 8), &wide, 1)),
    ];
    let answers = cluster.all(&checks).await;
    assert_eq!(outcome(&answers[1]).verdict, Verdict::Refuse);
    assert_eq!(outcome(&answers[0]).charged, Hits(1), "the quota in the other slot passes");
    assert_eq!(cluster.left(tagged(1, 7), &wide).await, 99);
}
