//! Bytes per key of the embedded store, and nanoseconds per call.

use std::sync::Arc;
use std::time::Instant;

use tidegate::domain::{
    Accounting, Algorithm, Bucket, Call, Charge, Check, CounterKey, FixedWindow, Hits, Limit,
    Micros, OnStoreFailure, Op, Rate, Refill, Role, Unit, Window,
};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;

use super::Scale;

const NOW: Micros = Micros(1_800_000_000_000_000);

pub fn limit(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit {
        algorithm,
        rate: Rate { requests_per_unit: 1_000_000, unit: Some(Unit::Hour), unit_multiplier: 1 },
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Local,
        prepay: false,
        block_seconds: None,
        reserve: None,
        limit_id: 1,
    })
}

pub fn algorithms() -> [(&'static str, Arc<Limit>); 2] {
    [
        (
            "fixed_window",
            limit(Algorithm::FixedWindow(FixedWindow {
                hits: Hits(1_000_000),
                window: Window::Epoch { length: Micros::from_secs(3_600) },
            })),
        ),
        (
            "token_bucket",
            limit(Algorithm::Bucket(Bucket {
                burst: Hits(1_000_000),
                debt_burst: Hits(1_000_000),
                refill: Refill::Arrival { emission: Micros(3_600) },
                floor: Hits::ZERO,
                leaky: false,
            })),
        ),
    ]
}

/// Keys that are spread as the keyed hash spreads them.
pub fn key(nth: usize) -> CounterKey {
    let hash = blake3::hash(&nth.to_le_bytes());
    let bytes = hash.as_bytes().first_chunk::<16>().expect("32 bytes have 16");
    CounterKey { identity: u128::from_le_bytes(*bytes), tag: None }
}

/// A check that charges the counter of a key.
pub fn check(limit: &Arc<Limit>, key: CounterKey, cost: Hits) -> Check<'_> {
    let op = Op::Take { cost };
    Check { key, limit, op, role: Role::Required, holder: None, may_block: true }
}

fn take(store: &MemoryStore, limit: &Arc<Limit>, key: CounterKey, now: Micros) {
    let check = check(limit, key, Hits::ONE);
    let accounting = Accounting::AllOrNothing;
    let call = Call { checks: &[check], accounting, now, deadline: None };
    let mut apply = std::pin::pin!(store.apply(&call));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match apply.as_mut().poll(&mut context) {
        std::task::Poll::Ready(answers) => drop(std::hint::black_box(answers)),
        std::task::Poll::Pending => panic!("the memory store never waits"),
    }
}

/// A store with room for so many keys, and a hit on each of `keys` of them.
pub fn store(room: usize, limit: &Arc<Limit>, keys: usize) -> MemoryStore {
    let store = MemoryStore::new(room);
    for nth in 0..keys {
        take(&store, limit, key(nth), NOW);
    }
    store
}

/// Nanoseconds per call on a thousand hot keys. Time goes on by 10 ms a round, so that what is over
/// is cleared away as it would be.
pub fn hot(store: &MemoryStore, limit: &Arc<Limit>) -> f64 {
    let hot: Vec<CounterKey> = (0..1_000).map(key).collect();
    let began = Instant::now();
    let rounds = 1_000;
    for round in 0..rounds {
        for &key in &hot {
            take(store, limit, key, Micros(NOW.0 + round * 10_000));
        }
    }
    began.elapsed().as_secs_f64() * 1e9 / (rounds * hot.len() as u64) as f64
}

pub fn run(scale: Scale) {
    println!("\nThe embedded store: one check a call");
    println!("{:<14} {:>12} {:>14} {:>14}", "algorithm", "keys", "bytes per key", "ns, hot keys");
    for (name, limit) in algorithms() {
        for &keys in scale.keys {
            let store = store(keys * 2, &limit, keys);
            let ns = hot(&store, &limit);
            let per_key = store.footprint() as f64 / keys as f64;
            println!("{name:<14} {keys:>12} {per_key:>14.1} {ns:>14.0}");
        }
    }
}
