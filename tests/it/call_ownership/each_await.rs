//! The caller is dropped or stalls at every await of one call, for each kind of call and each fate of
//! its commands. Afterwards the call is charged whole or not at all.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::domain::{Answer, Answers, Call, Check, Hits, Limit, Micros, Op, Source, Verdict};
use tidegate::resilience::stack::{self, StackConfig};
use tidegate::store::Store;
use tidegate::store::delivery::UnheardHits;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::store::TimeSource;

use super::scripted_transport::{Fate, Prompt, Scripted, Step};
use crate::support::limits::*;
use crate::support::proof::times;
use crate::support::random::Random;
use crate::support::redis_server::Server;

/// Time that a call waits for Redis, in milliseconds.
const BUDGET_MS: u64 = 100;

pub type Stack = Arc<stack::Stack<RedisStore<Scripted>, MemoryStore>>;

/// The whole stack of the service over a scripted transport.
pub struct Bench {
    pub transport: Scripted,
    pub stack: Stack,
    probe: RedisStore<Prompt>,
    unheard: Vec<UnheardHits>,
    /// Time of the next call, in microseconds since the Unix epoch.
    now: AtomicU64,
    _server: Server,
}

/// How a caller treats its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Stays,
    /// Drops the future at this poll, from 1.
    DropsAt(u64),
    /// Never polls the future again after this poll, from 1.
    StallsAt(u64),
}

impl Bench {
    pub fn new(is_cluster: bool) -> Bench {
        let server = Server::start(&[]);
        let transport = Scripted::new(&server, is_cluster);
        let prefix = Prefix::default();
        let redis = RedisStore::new(transport.clone(), prefix.clone(), TimeSource::Server);
        let mut unheard = vec![redis.stats().unheard.clone()];
        let budget = Duration::from_millis(BUDGET_MS);
        let config = StackConfig { budget, replicas: 1, refusal_cache: false };
        let stack = stack::Stack::new(redis, MemoryStore::new(100_000), config, Clock::System);
        unheard.push(stack.stats().unheard.clone());
        let probe = RedisStore::new(transport.prompt(), prefix, TimeSource::Server);
        Bench {
            transport,
            stack,
            probe,
            unheard,
            now: AtomicU64::new(Clock::System.now().0),
            _server: server,
        }
    }

    pub fn unheard(&self) -> u64 {
        self.unheard.iter().map(UnheardHits::get).sum()
    }

    /// Hits that the check's counter holds in Redis.
    pub async fn used(&self, check: &Check<'_>) -> u64 {
        self.used_by_each(std::slice::from_ref(check)).await[0]
    }

    /// The same for each check, in one round trip.
    pub async fn used_by_each(&self, checks: &[Check<'_>]) -> Vec<u64> {
        let plain = |check: &Check<'_>| Limit { prepay: false, ..Limit::clone(check.limit) };
        let limits: Vec<Arc<Limit>> = checks.iter().map(|check| Arc::new(plain(check))).collect();
        let each = checks.iter().zip(&limits);
        let peeks: Vec<Check<'_>> =
            each.map(|(check, limit)| Check { limit, op: Op::PEEK, ..*check }).collect();
        let call = call(&peeks, START);
        let answers = self.probe.apply(&call).await;
        let left = |answer: &Answer| answer.outcome().expect("it is decided").available;
        let each = checks.iter().zip(&answers.each);
        each.map(|(check, answer)| check.limit.capacity().0 - left(answer).0).collect()
    }

    /// A call so long after the last one that charges which were late then count as made.
    pub fn call<'a>(&self, checks: &'a [Check<'a>]) -> Call<'a> {
        let now = Micros(self.now.fetch_add(2 * SECOND, Ordering::Relaxed));
        call(checks, now)
    }

    /// A call at the real time. Prepaid hits end when the clock steps.
    pub fn call_now<'a>(&self, checks: &'a [Check<'a>]) -> Call<'a> {
        Call { now: Clock::System.now(), ..self.call(checks) }
    }
}

/// Runs `work` in a runtime of its own, whose paused clock starts at the real time.
pub fn paused<W: Future>(work: W) -> W::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(work)
}

/// Lets everything end that the store does after a call.
pub async fn settle() {
    tokio::time::sleep(Duration::from_secs(30)).await;
}

/// Polls a call as the caller does. Returns the answers if it hears them, and the number of polls.
pub async fn poll_as(
    caller: Caller,
    mut call: std::pin::Pin<Box<impl Future<Output = Answers>>>,
    after: impl AsyncFnOnce(),
) -> (Option<Answers>, u64) {
    let mut polls = 0;
    let last = match caller {
        Caller::Stays => u64::MAX,
        Caller::DropsAt(poll) | Caller::StallsAt(poll) => poll,
    };
    let heard = poll_fn(|context| {
        polls += 1;
        match call.as_mut().poll(context) {
            Poll::Ready(answers) => Poll::Ready(Some(answers)),
            Poll::Pending if polls >= last => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    match caller {
        Caller::StallsAt(_) if heard.is_none() => {
            settle().await;
            after().await;
            drop(call);
        }
        Caller::Stays | Caller::DropsAt(_) | Caller::StallsAt(_) => drop(call),
    }
    settle().await;
    (heard, polls)
}

/// Makes one call, and checks that it was charged as its caller was told, or whole or not at all.
/// Returns the number of polls that the call took.
fn judge(bench: &Bench, checks: &[Check<'_>], steps: &[Step], caller: Caller) -> u64 {
    paused(async {
        let context = format!("{caller:?} {steps:?}");
        let before = bench.used_by_each(checks).await;
        let (unheard, lost) = (bench.unheard(), bench.transport.lost_after_running());
        bench.transport.follow(steps);
        let call = bench.call(checks);
        let is_whole = async || {
            let charged = differences(&before, &bench.used_by_each(checks).await);
            let costs: Vec<u64> = checks.iter().map(|check| check.cost().0).collect();
            let is_none = charged.iter().all(|hits| *hits == 0);
            (charged == costs, is_none, charged)
        };
        let is_lost = || bench.transport.lost_after_running() > lost;
        let while_stalled = async || {
            let (all, none, charged) = is_whole().await;
            assert!(all || none || is_lost(), "stalled and half charged: {charged:?} {context}");
        };
        let future = Box::pin(bench.stack.apply(&call));
        let (heard, polls) = poll_as(caller, future, while_stalled).await;
        let (all, none, charged) = is_whole().await;
        if is_lost() {
            return polls;
        }
        match heard {
            None => {
                assert!(all || none, "half charged: {charged:?} {context}");
                let sum: u64 = charged.iter().sum();
                assert_eq!(bench.unheard() - unheard, sum, "unheard hits {charged:?} {context}");
            }
            Some(answers) => {
                let passes =
                    answers.each.iter().all(|answer| answer.verdict() == Some(Verdict::Pass));
                let is_local = matches!(answers.source, Source::Local | Source::Shed);
                let is_refused = |answer: &Answer| answer.verdict() == Some(Verdict::Refuse);
                let is_decided = passes || answers.each.iter().any(is_refused);
                assert!(is_decided, "a limit was not asked: {context} {answers:?}");
                let is_right = if passes { all || is_local } else { none };
                assert!(is_right, "{passes} {charged:?} {context} {answers:?}");
                assert_eq!(bench.unheard(), unheard, "it was heard: {context}");
            }
        }
        polls
    })
}

pub fn differences(before: &[u64], after: &[u64]) -> Vec<u64> {
    before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).collect()
}

/// Every way in which the commands of a call may go, alone and beside a prompt one.
fn scripts(commands: usize) -> Vec<Vec<Step>> {
    let step = |written_after, runs_after, answered_after, fate| Step {
        written_after,
        runs_after,
        answered_after,
        fate,
    };
    let late = 3 * BUDGET_MS;
    let mut ways = vec![step(1, 1, 1, Fate::Answered)];
    for fate in [Fate::NotExecuted, Fate::LostBefore, Fate::LostAfter, Fate::Shed] {
        ways.push(step(1, 1, 1, fate));
    }
    ways.push(step(late, 1, 1, Fate::Answered));
    ways.push(step(1, late, 1, Fate::Answered));
    ways.push(step(1, 1, late, Fate::Answered));
    let mut scripts = vec![Vec::new()];
    for _ in 0..commands {
        let longer = |script: &Vec<Step>| -> Vec<Vec<Step>> {
            ways.iter().map(|way| script.iter().copied().chain([*way]).collect()).collect()
        };
        scripts = scripts.iter().flat_map(longer).collect();
    }
    scripts
}

/// Tries a call with every script for `commands` commands, and with callers that leave or stall at
/// every poll.
fn try_every_await<'a>(
    bench: &Bench,
    commands: usize,
    mut checks: impl FnMut(u64) -> Vec<Check<'a>>,
) {
    let mut salt = 0;
    for script in scripts(commands) {
        // Afresh for each call, so that none is refused because of another.
        let mut try_once = |caller| {
            salt += 1;
            judge(bench, &checks(salt), &script, caller)
        };
        let polls = try_once(Caller::Stays);
        for poll in 1..polls {
            try_once(Caller::DropsAt(poll));
            try_once(Caller::StallsAt(poll));
        }
    }
}

/// A long window, which ends after any test.
fn wide() -> Arc<Limit> {
    window(1_000, 1_000_000 * SECOND)
}

#[test]
fn a_call_of_one_script_is_charged_whole_or_not_at_all() {
    let bench = Bench::new(false);
    let (limit, bucket) = (wide(), bucket(1_000, HOUR));
    try_every_await(&bench, 1, |salt| {
        vec![take(key(2 * salt), &limit, 3), take(key(2 * salt + 1), &bucket, 2)]
    });
}

/// A key in a slot of that node of the scripted cluster.
fn on_node(salt: u64, node: u64) -> tidegate::domain::CounterKey {
    let mut keys = (0..).map(|nth| key(salt << 16 | nth));
    let of_node = |key: &tidegate::domain::CounterKey| {
        u64::from(tidegate::store::redis::script::keys::counter_slot(key) % 3) == node
    };
    keys.find(of_node).unwrap()
}

#[test]
fn scripts_on_several_nodes_are_charged_whole_or_not_at_all() {
    let bench = Bench::new(true);
    let (limit, bucket, used_up) = (wide(), bucket(1_000, HOUR), bucket(1, HOUR));
    try_every_await(&bench, 2, |salt| {
        vec![take(on_node(salt, 0), &limit, 3), take(on_node(salt, 1), &bucket, 2)]
    });
    // One refuses, so the other charge is refunded.
    try_every_await(&bench, 2, |salt| {
        let salt = 1_000_000 + salt;
        vec![take(on_node(salt, 0), &limit, 3), take(on_node(salt, 1), &used_up, 2)]
    });
}

#[test]
fn calls_that_must_fit_own_charges_are_charged_whole_or_not_at_all() {
    let bench = Bench::new(false);
    bench.transport.lose();
    let (limit, bucket) = (wide(), bucket(1_000, HOUR));
    try_every_await(&bench, 1, |salt| {
        vec![take(key(2 * salt), &limit, 3), take(key(2 * salt + 1), &bucket, 2)]
    });
}

#[test]
fn slots_of_a_caller_that_leaves_are_taken_whole_or_not_at_all() {
    let bench = Bench::new(true);
    let (limit, slots) = (wide(), slots(10, 3_600 * SECOND));
    try_every_await(&bench, 2, |salt| {
        let holder = Some(tidegate::domain::Holder(u128::from(salt)));
        let slot = Check { holder, ..take(on_node(salt, 1), &slots, 2) };
        vec![take(on_node(salt, 0), &limit, 3), slot]
    });
}

#[test]
fn give_backs_are_made_once_or_not_at_all() {
    let bench = Bench::new(false);
    let limit = wide();
    let mut salt = 0;
    for script in scripts(1) {
        for caller in [Caller::Stays, Caller::DropsAt(1), Caller::StallsAt(1), Caller::DropsAt(2)] {
            salt += 1;
            let key = key(salt);
            paused(async {
                let take = [take(key, &limit, 10)];
                bench.transport.follow(&[]);
                drop(bench.stack.apply(&bench.call(&take)).await);
                bench.transport.follow(&script);
                let give_back = [refund(key, &limit, 4)];
                let call = bench.call(&give_back);
                poll_as(caller, Box::pin(bench.stack.apply(&call)), async || ()).await;
                let used = bench.used(&give_back[0]).await;
                assert!(used == 10 || used == 6, "{used} {caller:?} {script:?}");
            });
        }
    }
}

/// Random calls of up to four checks, on random scripts, whose callers leave or stall at random polls.
#[test]
fn random_calls_are_charged_whole_or_not_at_all() {
    let seeds = times(2_500, 1_000_000);
    let limits = [wide(), bucket(1_000, HOUR), window(2, 1_000_000 * SECOND), bucket(2, HOUR)];
    let benches = [false, true].map(Bench::new);
    for seed in 1..=seeds {
        let mut random = Random::seeded(seed);
        let which = random.below(2) as usize;
        let bench = &benches[which];
        let count = 1 + random.below(4);
        let checks: Vec<Check<'_>> = (0..count)
            .map(|n| {
                let limit = &limits[random.below(4) as usize];
                take(key(seed << 8 | n), limit, 1 + random.below(3))
            })
            .collect();
        let mut delay = || match random.below(6) {
            0 => 3 * BUDGET_MS,
            some => some - 1,
        };
        let steps: Vec<Step> = (0..6)
            .map(|_| Step {
                written_after: delay(),
                runs_after: delay(),
                answered_after: delay(),
                fate: Fate::Answered,
            })
            .collect();
        let fates = [Fate::NotExecuted, Fate::LostBefore, Fate::LostAfter, Fate::Shed];
        let mut random = Random::seeded(seed + seeds);
        let steps: Vec<Step> = steps
            .into_iter()
            .map(|step| match random.below(12) {
                fate @ 0..4 => Step { fate: fates[fate as usize], ..step },
                _ => step,
            })
            .collect();
        let caller = match random.below(3) {
            0 => Caller::Stays,
            1 => Caller::DropsAt(1 + random.below(4)),
            _ => Caller::StallsAt(1 + random.below(4)),
        };
        println!("seed {seed}, bench {which}");
        judge(bench, &checks, &steps, caller);
    }
    println!("{seeds} random calls");
}

/// A lowered cost must not hide a mistake in the bench itself.
#[test]
fn the_bench_sees_what_a_call_charges() {
    let bench = Bench::new(false);
    let limit = wide();
    paused(async {
        let check = take(key(1), &limit, 7);
        assert_eq!(bench.used(&check).await, 0);
        let answers = bench.stack.apply(&bench.call(&[check])).await;
        assert_eq!(answers.each[0].outcome().unwrap().charged, Hits(7));
        assert_eq!(bench.used(&check).await, 7);
    });
}
