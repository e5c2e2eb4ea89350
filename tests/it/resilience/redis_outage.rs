//! Outages of a real Redis, under load, through the layers that the service puts in front of it.

#![allow(clippy::disallowed_methods, reason = "waits with a deadline")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Algorithm, Answer, Call, Charge, FixedWindow, Hits, Limit, Micros, OnStoreFailure,
    Rate, Source, Unit, Verdict, Window,
};
use tidegate::resilience::deadline::{BUDGET_DEFAULT, Deadline};
use tidegate::resilience::fallback::{Fallback, FallbackConfig};
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{Address, MonotonicClock, RedisConfig};
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::store::TimeSource;
use tidegate::store::{SharedStore as _, Store};
use tokio::task::JoinSet;

use super::fallback::take;
use crate::support::black_hole_proxy::Proxy;
use crate::support::heavy;
use crate::support::redis_server::{Server, until};

/// Far above any round trip on a busy machine, so only a real fault makes a call late. With the
/// service's 6 ms, an overloaded machine has outages before the one that the test causes, and Redis
/// does not know what was admitted in them (`fallback` tests that bound).
const PATIENT: Duration = Duration::from_secs(2);

/// A window that ends in no test, except for one second in May 2033.
const DECADES: u64 = 1_000_000_000;

type Stack = Fallback<Deadline<RedisStore<RedisClient>>, MemoryStore>;

/// A replica with its own connections, budget and fallback.
async fn replica(port: u16, replicas: u32, budget: Duration) -> Arc<Stack> {
    let stack = Arc::new(cold(port, replicas, budget));
    stack.remote().until_connected().await;
    stack
}

fn cold(port: u16, replicas: u32, budget: Duration) -> Stack {
    let clock = Clock::default();
    let began = clock.monotonic();
    let now = move || {
        let since = Clock::default().monotonic().duration_since(began);
        Micros(u64::try_from(since.as_micros()).unwrap())
    };
    let config = RedisConfig {
        addresses: vec![Address::Tcp("127.0.0.1".into(), port)],
        breaker_clock: Some(MonotonicClock::new(now)),
        ..RedisConfig::default()
    };
    let connections = RedisClient::open(config, PRODUCTION.all().to_vec()).unwrap();
    let store = RedisStore::new(connections, Prefix::default(), TimeSource::Server);
    let remote = Deadline::new(store, budget, clock);
    let stand_in = FallbackConfig { replicas, ..FallbackConfig::default() };
    Fallback::new(remote, MemoryStore::new(100_000), stand_in)
}

fn limit(hits: u64) -> Arc<Limit> {
    let window = Window::Epoch { length: Micros::from_secs(DECADES) };
    Arc::new(Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits(hits), window }),
        rate: Rate { requests_per_unit: 1, unit: Some(Unit::Year), unit_multiplier: 1 },
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Local,
        limit_id: 1,
    })
}

async fn asked(store: &Stack, identity: u128, limit: &Arc<Limit>) -> (bool, Source) {
    let checks = [take(identity, limit, 1)];
    let call = Call {
        checks: &checks,
        accounting: Accounting::AllOrNothing,
        now: Clock::default().now(),
        deadline: None,
    };
    let answers = store.apply(&call).await;
    let Answer::Decided(outcome) = answers.each[0] else { panic!("a caller sees an error") };
    (outcome.verdict == Verdict::Pass, answers.source)
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
    let _turn = heavy::turn().await;
    let mut server = Server::start(&[]);
    server.kill();
    let port = server.port;
    let stack = cold(port, 1, BUDGET_DEFAULT);
    let limit = limit(1_000_000);
    assert_eq!(asked(&stack, 1, &limit).await, (true, Source::Local));
    assert!(stack.outages().outage(Clock::default().now()).is_some());
    let _server = Server::try_start(port, &[], &[]).unwrap();
    let end = Instant::now() + crate::support::redis_server::PATIENCE;
    while asked(&stack, 1, &limit).await.1 != Source::Redis {
        assert!(Instant::now() < end, "it is never asked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_redis_causes_no_error_and_no_fresh_burst() {
    let _turn = heavy::turn().await;
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
    let _turn = heavy::turn().await;
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
    let _turn = heavy::turn().await;
    let server = Server::start(&[]);
    let stack = replica(server.port, 1, BUDGET_DEFAULT).await;
    let limit = limit(100_000_000);
    let load = Load::start(&stack, 1, &limit);
    load.more("Redis decides", &load.remote, 200).await;
    server.freeze();
    until("the breaker opens", || times_opened(&stack) > 0).await;
    load.more("it is decided locally", &load.local, 500).await;
    let overruns = stack.remote().overruns();
    load.more("still locally", &load.local, 500).await;
    let waited = stack.remote().overruns() - overruns;
    assert!(waited < 100, "{waited} of 500 calls waited in vain for a node whose breaker is open");
    server.thaw();
    load.more("Redis decides again", &load.remote, 500).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_is_detected_by_the_callers_timeout_not_by_tcps() {
    let _turn = heavy::turn().await;
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port);
    let stack = replica(proxy.port, 1, BUDGET_DEFAULT).await;
    let limit = limit(100_000_000);
    let load = Load::start(&stack, 1, &limit);
    load.more("Redis decides", &load.remote, 200).await;
    proxy.swallow(true);
    until("the breaker opens", || times_opened(&stack) > 0).await;
    load.more("it is decided locally", &load.local, 500).await;
    proxy.swallow(false);
    load.more("Redis decides again", &load.remote, 500).await;
    load.end().await;
}
