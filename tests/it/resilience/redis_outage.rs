//! Outages of a real Redis, under load, through the layers that the service puts in front of it.

#![allow(clippy::disallowed_methods, reason = "waits with a deadline")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate::domain::{Accounting, Answer, Call, Limit, Micros, OnStoreFailure, Source, Verdict};
use tidegate::resilience::deadline::BUDGET_DEFAULT;
use tidegate::resilience::stack::{self, StackConfig};
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{
    Address, MonotonicClock, REPLY_TIMEOUT, RedisConfig, SILENCE_MAX,
};
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::store::TimeSource;
use tidegate::store::{SharedStore as _, Store};
use tokio::task::JoinSet;

use super::fallback::take;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::heavy;
use crate::support::limits::{self, SECOND};
use crate::support::redis_server::{Server, until};

/// Far above any round trip on a busy machine, so only a real fault makes a call late. With the
/// service's budget, an overloaded machine has outages before the one that the test causes, and Redis
/// does not know what was admitted in them (`fallback` tests that bound).
pub(super) const PATIENT: Duration = Duration::from_secs(2);

/// A window that ends in no test, except for one second in May 2033.
const DECADES: u64 = 1_000_000_000;

pub(super) type Stack = Arc<stack::Stack<RedisStore<RedisClient>, MemoryStore>>;

/// A replica with its own connections, budget and fallback.
pub(super) async fn replica(port: u16, replicas: u32, budget: Duration) -> Arc<Stack> {
    let stack = Arc::new(cold(port, replicas, budget));
    stack.remote().wait_until_connected().await;
    stack
}

fn cold(port: u16, replicas: u32, budget: Duration) -> Stack {
    let config = RedisConfig {
        addresses: vec![Address::Tcp("127.0.0.1".into(), port)],
        // As the service does.
        silence_max: SILENCE_MAX.max(budget / 2),
        reply_timeout: REPLY_TIMEOUT.max(budget * 2),
        breaker_clock: Some(MonotonicClock::new(|| Clock::default().monotonic_now())),
        ..RedisConfig::default()
    };
    let connections = RedisClient::open(config, PRODUCTION.all().to_vec()).unwrap();
    let store = RedisStore::new(connections, Prefix::default(), TimeSource::Server);
    let config = StackConfig { budget, replicas, refusal_cache: false };
    stack::Stack::new(store, MemoryStore::new(100_000), config, Clock::System)
}

pub(super) fn limit(hits: u64) -> Arc<Limit> {
    limit_with(hits, OnStoreFailure::Local)
}

pub(super) fn limit_with(hits: u64, on_store_failure: OnStoreFailure) -> Arc<Limit> {
    limits::on_failure(&limits::window(hits, DECADES * SECOND), on_store_failure)
}

pub(super) async fn asked(store: &Stack, identity: u128, limit: &Arc<Limit>) -> (bool, Source) {
    let (answer, source) = answer_to(store, identity, limit, None).await;
    let Answer::Decided(outcome) = answer else { panic!("a caller sees an error") };
    (outcome.verdict == Verdict::Pass, source)
}

async fn answer_to(
    store: &Stack,
    identity: u128,
    limit: &Arc<Limit>,
    deadline: Option<Instant>,
) -> (Answer, Source) {
    let checks = [take(identity, limit, 1)];
    let call = Call {
        checks: &checks,
        accounting: Accounting::AllOrNothing,
        now: Clock::default().now(),
        deadline,
    };
    let answers = store.apply(&call).await;
    (answers.each[0], answers.source)
}

/// Callers of one replica, each counter in turn.
struct Load {
    stop: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    admitted_locally: Arc<AtomicU64>,
    local: Arc<AtomicU64>,
    remote: Arc<AtomicU64>,
    callers: JoinSet<()>,
}

impl Load {
    fn start(stack: &Arc<Stack>, identity: u128, limit: &Arc<Limit>) -> Load {
        let mut load = Load {
            stop: Arc::default(),
            admitted: Arc::default(),
            admitted_locally: Arc::default(),
            local: Arc::default(),
            remote: Arc::default(),
            callers: JoinSet::new(),
        };
        for _ in 0..8 {
            let (stack, limit) = (Arc::clone(stack), Arc::clone(limit));
            let (stop, admitted) = (Arc::clone(&load.stop), Arc::clone(&load.admitted));
            let locally = Arc::clone(&load.admitted_locally);
            let (local, remote) = (Arc::clone(&load.local), Arc::clone(&load.remote));
            load.callers.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let (passes, source) = asked(&stack, identity, &limit).await;
                    admitted.fetch_add(u64::from(passes), Ordering::SeqCst);
                    let here = passes && source != Source::Redis;
                    locally.fetch_add(u64::from(here), Ordering::SeqCst);
                    let by = if source == Source::Redis { &remote } else { &local };
                    by.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
        load
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::SeqCst)
    }

    async fn more(&self, what: &str, of: &AtomicU64, more: u64) {
        let before = of.load(Ordering::SeqCst);
        until(what, || of.load(Ordering::SeqCst) >= before + more).await;
    }

    async fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(caller) = self.callers.join_next().await {
            caller.unwrap();
        }
        self.admitted()
    }
}

fn times_opened(stack: &Stack) -> u64 {
    let report = stack.remote().nodes();
    report.iter().map(|node| node.stats.breaker_opened.get()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_redis_decides_locally_until_redis_is_up() {
    let _turn = heavy::alone().await;
    let mut server = Server::start(&[]);
    server.kill();
    let port = server.port;
    let stack = cold(port, 1, BUDGET_DEFAULT);
    let limit = limit(1_000_000);
    assert_eq!(asked(&stack, 1, &limit).await, (true, Source::Local));
    assert!(stack.outage(Clock::default().now()).is_some());
    let _server = Server::try_start(port, &[], &[]).unwrap();
    let end = Instant::now() + crate::support::redis_server::PATIENCE;
    while asked(&stack, 1, &limit).await.1 != Source::Redis {
        assert!(Instant::now() < end, "it is never asked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_redis_causes_no_error_and_no_fresh_burst() {
    let _turn = heavy::alone().await;
    let mut server = Server::start(&[]);
    let stack = replica(server.port, 1, PATIENT).await;
    let limit = limit(2_000);
    let load = Load::start(&stack, 1, &limit);
    load.more("Redis decides", &load.remote, 200).await;
    server.kill();
    load.more("it is decided locally", &load.local, 3_000).await;
    let admitted = load.end().await;
    // Up to a call of each caller was on its way when the local store took over.
    assert!((2_000..=2_008).contains(&admitted), "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_admit_no_more_than_the_limit_while_redis_is_down() {
    let _turn = heavy::alone().await;
    let mut server = Server::start(&[]);
    let limit = limit(1_000);
    let mut loads = Vec::new();
    let mut stacks = Vec::new();
    for _ in 0..3 {
        stacks.push(replica(server.port, 3, PATIENT).await);
    }
    for stack in &stacks {
        loads.push(Load::start(stack, 1, &limit));
    }
    for load in &loads {
        load.more("Redis decides", &load.remote, 30).await;
    }
    server.kill();
    for load in &loads {
        load.more("it is decided locally", &load.local, 1_000).await;
    }
    let mut admitted = 0;
    for load in loads {
        let locally = Arc::clone(&load.admitted_locally);
        load.end().await;
        admitted += locally.load(Ordering::SeqCst);
    }
    assert!(admitted <= 1_000, "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_opens_the_breaker_and_is_used_again_once_it_thaws() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, BUDGET_DEFAULT).await;
    let limit = limit(100_000_000);
    let load = Load::start(&stack, 1, &limit);
    load.more("Redis decides", &load.remote, 200).await;
    server.freeze();
    until("the breaker opens", || times_opened(&stack) > 0).await;
    load.more("it is decided locally", &load.local, 500).await;
    let overruns = || stack.remote().stats().overruns.load(Ordering::Relaxed);
    let before = overruns();
    load.more("still locally", &load.local, 500).await;
    assert_eq!(
        overruns() - before,
        0,
        "of 500 calls waited in vain for a node whose breaker is open"
    );
    server.thaw();
    load.more("Redis decides again", &load.remote, 500).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_is_detected_by_the_callers_timeout_not_by_tcps() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port);
    let stack = replica(proxy.port, 1, BUDGET_DEFAULT).await;
    let limit = limit(100_000_000);
    let load = Load::start(&stack, 1, &limit);
    load.more("Redis decides", &load.remote, 200).await;
    proxy.both(Fault::Swallow);
    until("the breaker opens", || times_opened(&stack) > 0).await;
    load.more("it is decided locally", &load.local, 500).await;
    proxy.heal();
    load.more("Redis decides again", &load.remote, 500).await;
    load.end().await;
}

/// Sends calls at once, and counts those that Redis decided.
async fn decided_by_redis(stack: &Stack, calls: u32, limit: &Arc<Limit>) -> usize {
    let all = (0..calls).map(|_| answer_to(stack, 1, limit, None));
    let answers = futures_util::future::join_all(all).await;
    let by_redis = |(answer, source): &&(Answer, Source)| {
        answer.outcome().is_some() && *source == Source::Redis
    };
    answers.iter().filter(by_redis).count()
}

/// Freezes Redis until the breaker is open, leaves it frozen and then thawed without any traffic, and
/// returns how many of the first calls Redis decides.
async fn first_calls_after_a_thaw(calls: u32) -> usize {
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, PATIENT).await;
    let limit = limit_with(1_000_000, OnStoreFailure::Error);
    assert_eq!(decided_by_redis(&stack, 20, &limit).await, 20);
    server.freeze();
    assert_eq!(decided_by_redis(&stack, 20, &limit).await, 0, "Redis is frozen");
    assert!(!stack.remote().is_available());
    // No traffic, so only PINGs can notice the thaw.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(times_opened(&stack), 1, "it stays open");
    server.thaw();
    until("the breaker closes without traffic", || stack.remote().is_available()).await;
    let now = Clock::default().now();
    assert!(stack.outage(Micros(now.0 + 2_000_000)).is_none(), "it is not degraded any more");
    decided_by_redis(&stack, calls, &limit).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_of_twenty_first_calls_after_a_thaw_fails() {
    let _turn = heavy::alone().await;
    assert_eq!(first_calls_after_a_thaw(20).await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_of_a_hundred_first_calls_after_a_thaw_fails() {
    let _turn = heavy::alone().await;
    assert_eq!(first_calls_after_a_thaw(100).await, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opening_breaker_answers_every_call_that_waits() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, PATIENT).await;
    let limit = limit(1_000_000);
    assert_eq!(decided_by_redis(&stack, 20, &limit).await, 20);
    server.freeze();
    // More than the connections write at once, so some wait in flight and some in the queues.
    assert_eq!(decided_by_redis(&stack, 900, &limit).await, 0);
    assert_eq!(times_opened(&stack), 1);
    assert_eq!(
        stack.remote().stats().overruns.load(Ordering::Relaxed),
        0,
        "the breaker ended them, not their budget"
    );
    server.thaw();
}

#[tokio::test]
async fn a_flood_is_shed_and_opens_no_breaker() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, 10 * PATIENT).await;
    let limit = limit(1_000_000);
    let all = (0..12_000).map(|_| asked(&stack, 1, &limit));
    let answers = futures_util::future::join_all(all).await;
    let by = |wanted: Source| answers.iter().filter(|(_, source)| *source == wanted).count();
    assert_eq!(by(Source::Redis) + by(Source::Shed), 12_000, "none is late");
    assert!(by(Source::Shed) > 2_000, "the queues hold 8,192");
    assert!(by(Source::Redis) >= 256, "what fits is sent");
    assert_eq!(times_opened(&stack), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_cannot_be_answered_in_time_is_not_written() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, PATIENT).await;
    // Rejected, because hits of an admitted call would be charged afterwards.
    let limit = limit_with(1_000_000, OnStoreFailure::Deny);
    let written =
        || -> u64 { stack.remote().nodes().iter().map(|node| node.stats.calls.get()).sum() };
    let before = written();
    let soon = Clock::default().monotonic_now() + Duration::from_millis(1);
    assert_eq!(answer_to(&stack, 1, &limit, Some(soon)).await.1, Source::Shed);
    assert_eq!(written(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_calls_wait_for_a_frozen_redis_before_its_breaker_opens() {
    let _turn = heavy::alone().await;
    let server = Server::start(&[]);
    // The breaker opens after a second of silence. On a machine so busy that 200 calls take as long,
    // it is not the estimate that answers.
    for _ in 0..10 {
        if let Some(shed) = shed_while_frozen(&server).await {
            assert!(shed >= 100, "{shed} of 200 calls did not wait");
            return;
        }
    }
    panic!("200 calls take more than a second");
}

/// Freezes Redis for 200 calls. Returns how many of them did not wait, or `None` if the breaker has
/// opened meanwhile.
async fn shed_while_frozen(server: &Server) -> Option<usize> {
    let stack = replica(server.port, 1, PATIENT).await;
    let limit = limit(1_000_000);
    let pause = || tokio::time::sleep(Duration::from_millis(1));
    for _ in 0..200 {
        assert_eq!(asked(&stack, 1, &limit).await.1, Source::Redis);
        pause().await;
    }
    server.freeze();
    let mut calls = JoinSet::new();
    for _ in 0..200 {
        let (stack, limit) = (Arc::clone(&stack), Arc::clone(&limit));
        let soon = Clock::default().monotonic_now() + Duration::from_millis(20);
        calls.spawn(async move { answer_to(&stack, 1, &limit, Some(soon)).await.1 });
        pause().await;
    }
    let sources = calls.join_all().await;
    let opened = times_opened(&stack);
    server.thaw();
    for _ in 0..1_000 {
        if asked(&stack, 1, &limit).await.1 == Source::Redis {
            let shed = sources.iter().filter(|source| **source == Source::Shed).count();
            return (opened == 0).then_some(shed);
        }
        pause().await;
    }
    panic!("the estimate does not recover");
}
