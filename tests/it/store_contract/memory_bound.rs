//! The memory store's own promises: what happens when it is full, and how much memory it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::domain::{CounterKey, Limit};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;

use super::memory_store::{MemoryBench, spread};
use super::store_under_test::*;
use crate::support::limits;

/// Fills a store with `n` counters that live for a minute; returns their keys.
async fn fill(bench: &MemoryBench, n: u64, limit: &Arc<Limit>) -> Vec<CounterKey> {
    let keys: Vec<CounterKey> = (0..n).map(|n| bench.key(1_000_000 + n)).collect();
    for key in &keys {
        taken(bench, *key, limit, 1).await;
    }
    keys
}

pub fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub fn family(limit_id: u64, limit: &Limit) -> Arc<Limit> {
    Arc::new(Limit { limit_id, ..limit.clone() })
}

#[tokio::test]
async fn a_flood_of_a_million_fresh_keys_stays_in_bounds_and_leaves_old_keys_as_they_were() {
    const MAX: usize = 50_000;
    let bench = MemoryBench::new(MAX);
    let (old_limit, flood_limit) = (bucket(5, MINUTE), family(2, &window(3, MINUTE)));
    let old = fill(&bench, 1_000, &old_limit).await;
    for n in 0..1_000_000_u64 {
        // An odd factor spreads the bits as a hash would; hashing a million keys takes longer.
        let identity = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        one(&bench, take(CounterKey { identity, tag: None }, &flood_limit, 1)).await;
    }
    assert!(bench.store.len() <= MAX, "{}", bench.store.len());
    assert!(count(&bench.store.stats().overflowed) > 0);
    for key in old {
        assert_eq!(left(&bench, key, &old_limit).await, 4);
    }
}

#[tokio::test]
async fn a_key_without_room_is_never_admitted_more_than_its_limit() {
    let bench = MemoryBench::new(640);
    let (filler, limit) = (bucket(1, MINUTE), family(2, &window(5, MINUTE)));
    fill(&bench, 560, &filler).await;
    for n in 0..50 {
        let mut admitted = 0;
        for _ in 0..10 {
            admitted += u64::from(passes(&one(&bench, take(bench.key(n), &limit, 1)).await));
        }
        assert!(admitted <= 5, "{admitted}");
    }
    // In calls of several checks too, on the same shared counters.
    let mut admitted = 0;
    for _ in 0..30 {
        let checks = [take(bench.key(60), &limit, 1), take(bench.key(61), &limit, 1)];
        admitted += u64::from(verdicts(&apply(&bench, &checks).await) == [true, true]);
    }
    assert!(admitted <= 5, "{admitted}");
    assert!(bench.store.len() <= 640);
}

#[tokio::test]
async fn expired_entries_make_room_before_anything_is_shared() {
    let bench = MemoryBench::new(640);
    let short = bucket(1, SECOND);
    for round in 0..20 {
        for n in 0..560 {
            taken(&bench, bench.key(round * 1_000 + n), &short, 1).await;
        }
        bench.advance(SECOND);
    }
    let counters = bench.store.stats();
    assert_eq!(count(&counters.overflowed), 0);
    assert!(count(&counters.evicted) >= 18 * 560);
    assert!(bench.store.len() <= 640);
}

#[tokio::test]
async fn an_entry_outlives_the_millisecond_in_which_it_expires() {
    let bench = MemoryBench::new(1_000);
    let (key, limit) = (bench.key(1), bucket(1, 1_500));
    assert!(passes(&one(&bench, take(key, &limit, 1)).await));
    bench.advance(1_499);
    bench.store.sweep(bench.now(), usize::MAX);
    assert!(!passes(&one(&bench, take(key, &limit, 1)).await), "a hit refills in 1.5 ms");
    bench.advance(1);
    assert!(passes(&one(&bench, take(key, &limit, 1)).await));
}

#[tokio::test]
async fn what_reads_or_refuses_leaves_no_entry() {
    let bench = MemoryBench::new(1_000);
    let (none, limit) = (window(0, MINUTE), bucket(5, SECOND));
    for n in 0..100 {
        let (a, b) = (bench.key(2 * n), bench.key(2 * n + 1));
        one(&bench, peek(a, &limit)).await;
        one(&bench, refund(a, &limit, 3)).await;
        one(&bench, take(a, &none, 1)).await;
        apply(&bench, &[take(a, &limit, 1), take(b, &none, 1), peek(b, &limit)]).await;
    }
    assert!(bench.store.is_empty());
}

#[tokio::test]
async fn a_sweep_goes_on_where_the_last_one_stopped() {
    let bench = MemoryBench::new(100_000);
    fill(&bench, 5_000, &bucket(1, SECOND)).await;
    assert_eq!(bench.store.sweep(bench.now(), usize::MAX), 0, "all are live");
    bench.advance(SECOND);
    let mut sweeps = 0;
    while !bench.store.is_empty() {
        bench.store.sweep(bench.now(), 1_000);
        sweeps += 1;
        assert!(sweeps < 1_000);
    }
    assert!(sweeps >= 5);
}

#[tokio::test]
async fn what_is_worth_knowing_is_counted() {
    let bench = MemoryBench::new(1_000);
    let counters = bench.store.stats();
    let limit = window(5, MINUTE);
    one(&bench, take(bench.key(1), &limit, 6)).await;
    apply(&bench, &[take(bench.key(1), &limit, 6), peek(bench.key(1), &limit)]).await;
    one(&bench, take(bench.key(1), &limit, 1)).await;
    assert!(!passes(&one(&bench, take(bench.key(1), &limit, 5)).await));
    assert_eq!(count(&counters.cost_exceeds_capacity), 2, "a cost of 5 does not exceed it");
    bench.advance(MINUTE);
    one(&bench, take(bench.key(1), &limit, 1)).await;
    bench.set(START);
    one(&bench, take(bench.key(1), &limit, 1)).await;
    assert_eq!(count(&counters.clock_regressions), 1);
}

#[tokio::test]
async fn a_key_costs_at_most_64_bytes_all_in() {
    let store = MemoryStore::new(2_000_000);
    let limit = bucket(5, MINUTE);
    let keys = 1_000_000_u64;
    for n in 0..keys {
        let identity = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let check = [take(CounterKey { identity, tag: None }, &limit, 1)];
        store.apply(&limits::call(&check, START)).await;
    }
    assert_eq!(store.len() as u64, keys);
    let per_key = store.footprint() as f64 / keys as f64;
    println!("{per_key:.1} bytes per key");
    assert!(per_key <= 64.0, "{per_key}");
}

/// Identities are 128 bits of which the store uses some for the shard and some for the index.
#[tokio::test]
async fn keys_that_differ_in_one_bit_are_different_counters() {
    let bench = MemoryBench::new(1_000);
    let limit = bucket(1, MINUTE);
    let base = spread(0, 7);
    taken(&bench, CounterKey { identity: base, tag: None }, &limit, 1).await;
    for bit in 0..128 {
        taken(&bench, CounterKey { identity: base ^ (1 << bit), tag: None }, &limit, 1).await;
    }
    assert_eq!(bench.store.len(), 129);
}

#[tokio::test]
async fn logs_and_slots_count_by_their_size() {
    let bench = MemoryBench::new(10_000);
    let log = sliding_log(1_000, MINUTE);
    for _ in 0..100 {
        taken(&bench, bench.key(1), &log, 1).await;
    }
    assert!((50..60).contains(&bench.store.len()), "{}", bench.store.len());
    let limit = slots(1_000, MINUTE);
    for holder in 1..=100 {
        one(&bench, held(holder, take(bench.key(2), &limit, 1))).await;
    }
    let both = bench.store.len();
    assert!((120..140).contains(&both), "{both}");
    for holder in 1..=100 {
        one(&bench, held(holder, refund(bench.key(2), &limit, 1))).await;
    }
    assert!(bench.store.len() < 60, "what is returned makes room: {}", bench.store.len());
    // In calls of several checks as well.
    let other = window(5, MINUTE);
    for n in 0..50 {
        let call = [take(bench.key(1), &log, 1), peek(bench.key(500 + n), &other)];
        apply(&bench, &call).await;
    }
    assert!((76..90).contains(&bench.store.len()), "{}", bench.store.len());
    bench.advance(2 * MINUTE);
    bench.store.sweep(bench.now(), 100_000);
    assert_eq!(bench.store.len(), 0, "nothing is lost count of");
}

#[tokio::test]
async fn a_large_log_stays_within_the_bound_and_the_footprint_tells_its_size() {
    const MAX: usize = 3_000;
    let bench = MemoryBench::new(MAX);
    let log = sliding_log(10_000, MINUTE);
    let (empty, mut refused) = (bench.store.footprint(), 0);
    for _ in 0..20_000 {
        refused += u64::from(!passes(&one(&bench, take(bench.key(1), &log, 1)).await));
    }
    assert!(bench.store.len() <= MAX, "{}", bench.store.len());
    assert!(refused > 10_000, "a log that cannot grow refuses: {refused}");
    let grown = bench.store.footprint() - empty;
    assert!((100_000..200_000).contains(&grown), "{grown} bytes for some 2,700 keys' worth");
    // Others have room.
    let outcome = one(&bench, take(bench.key(99), &window(5, MINUTE), 1)).await;
    assert!(passes(&outcome));
}
