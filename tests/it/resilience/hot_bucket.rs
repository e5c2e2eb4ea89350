//! Several processes with a refusal cache each call one bucket far more often than it refills. Time
//! is simulated in steps of 100 microseconds, and a reply takes a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tidegate::clock::Clock;
use tidegate::domain::{Accounting, Answers, Call, Limit, Micros, Receipt, Verdict};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;
use tokio::sync::oneshot;

use crate::support::limits::{SECOND, START, bucket, credits, key, take};

const STEP_US: u64 = 100;
/// The time of the simulation, and who waits until when.
#[derive(Default)]
struct Timer {
    now: AtomicU64,
    sleepers: Mutex<Vec<(u64, oneshot::Sender<()>)>>,
}

impl Timer {
    fn now(&self) -> Micros {
        Micros(self.now.load(Ordering::Relaxed))
    }

    async fn sleep(&self, micros: u64) {
        let (wake, woken) = oneshot::channel();
        self.sleepers.lock().unwrap().push((self.now().0 + micros, wake));
        woken.await.unwrap();
    }

    fn advance(&self) {
        let now = self.now.fetch_add(STEP_US, Ordering::Relaxed) + STEP_US;
        let mut sleepers = self.sleepers.lock().unwrap();
        for (_, wake) in sleepers.extract_if(.., |(until, _)| *until <= now) {
            wake.send(()).unwrap();
        }
    }
}

/// A store that decides a call half a round trip after it was made.
struct FarStore {
    store: Arc<MemoryStore>,
    timer: Arc<Timer>,
    round_trip_us: u64,
    asked: Arc<AtomicU64>,
}

impl Store for FarStore {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.timer.sleep(self.round_trip_us / 2).await;
        let answers = self.store.apply(&Call { now: self.timer.now(), ..*call }).await;
        self.timer.sleep(self.round_trip_us / 2).await;
        answers
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.store.refund(receipts).await;
    }
}

/// Makes a call per step in each process, for two seconds. Returns how often the store was asked
/// and how many calls were admitted, both in the last second.
fn flood(limit: &Arc<Limit>, processes: usize, round_trip_us: u64) -> (u64, u64) {
    let timer = Arc::new(Timer { now: AtomicU64::new(START.0), ..Timer::default() });
    let (store, asked) = (Arc::new(MemoryStore::new(1_000)), Arc::<AtomicU64>::default());
    let caches: Vec<_> = (0..processes)
        .map(|_| {
            let (store, timer, asked) =
                (Arc::clone(&store), Arc::clone(&timer), Arc::clone(&asked));
            let remote = FarStore { store, timer, round_trip_us, asked };
            Stack::new(remote, MemoryStore::new(1), StackConfig::default(), Clock::System)
        })
        .collect();
    let checks = [take(key(1), limit, 1)];
    let mut calls = FuturesUnordered::new();
    let mut admitted = 0;
    for _ in 0..2 {
        asked.store(0, Ordering::Relaxed);
        admitted = 0;
        for _ in 0..SECOND / STEP_US {
            timer.advance();
            for cache in &caches {
                let (checks, now) = (&checks, timer.now());
                let accounting = Accounting::AllOrNothing;
                calls.push(async move {
                    cache.decide(&Call { checks, accounting, now, deadline: None }).await
                });
            }
            while let Some(Some(answers)) = calls.next().now_or_never() {
                admitted += u64::from(answers.each[0].verdict() == Some(Verdict::Pass));
            }
        }
    }
    (asked.load(Ordering::Relaxed), admitted)
}

#[test]
fn a_saturated_bucket_costs_about_one_call_per_hit_and_process_and_admits_as_many() {
    for (limit, hits) in [
        (bucket(500, 2_000), 500),
        (bucket(1, 1_000), 1_000),
        (bucket(500, 200), 5_000),
        (bucket(20, 50_000), 20),
        (credits(700, 700, SECOND), 700),
    ] {
        for (processes, round_trip_us) in [(1, 200), (1, 5_000), (3, 1_000)] {
            let (asked, admitted) = flood(&limit, processes, round_trip_us);
            let of = format!("{processes} processes, {round_trip_us} us, {:?}", limit.algorithm);
            let asked_max = hits * processes as u64 * 11 / 10;
            assert!(asked <= asked_max, "{of}: asked {asked} times");
            assert!((hits - hits / 50..=hits).contains(&admitted), "{of}: {admitted} admitted");
        }
    }
}
