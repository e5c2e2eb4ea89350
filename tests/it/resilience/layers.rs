//! The layers above a shared store pass on what the store reports, and add their own statistics.

use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::domain::{Answers, Call, Receipt};
use tidegate::resilience::deadline::Deadline;
use tidegate::resilience::prepaid_hits::PrepaidHits;
use tidegate::resilience::refusal_cache::RefusalCache;
use tidegate::store::memory::MemoryStore;
use tidegate::store::{SharedStore, SharedStoreStats, Store};

use super::fallback::call;
use crate::support::limits::{HOUR, START, key, take, window};

/// A shared store that is away, has lost counters three times and has made five script calls.
struct Reporting(MemoryStore);

impl Store for Reporting {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        self.0.apply(call).await
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.0.refund(receipts).await;
    }

    fn counter_losses(&self) -> u64 {
        3
    }
}

impl SharedStore for Reporting {
    type Node = ();

    fn nodes(&self) -> Vec<()> {
        vec![(), ()]
    }

    async fn wait_until_connected(&self) {}

    async fn wait_until_idle(&self) {}

    fn shared_stats(&self) -> SharedStoreStats {
        SharedStoreStats { script_calls: 5, ..SharedStoreStats::default() }
    }

    fn is_available(&self) -> bool {
        false
    }

    fn failure(&self) -> Option<String> {
        Some("it is away".to_owned())
    }

    fn retire_policy(&self) {}
}

fn layers() -> Deadline<RefusalCache<PrepaidHits<Reporting>>> {
    let prepaid = PrepaidHits::new(Reporting(MemoryStore::new(1_000)), 1, Clock::System);
    let cached = RefusalCache::new(prepaid);
    Deadline::new(cached, Duration::from_secs(3_600), Clock::System)
}

#[test]
fn what_a_store_reports_is_seen_through_every_layer() {
    let layers = layers();
    assert_eq!(layers.counter_losses(), 3);
    assert!(!layers.is_available());
    assert_eq!(layers.failure().as_deref(), Some("it is away"));
    assert_eq!(layers.nodes().len(), 2);
}

#[tokio::test]
async fn every_layer_adds_its_statistics_to_those_of_the_store() {
    let (layers, limit) = (layers(), window(1, HOUR));
    let checks = [take(key(1), &limit, 1); 2];
    for _ in 0..2 {
        layers.apply(&call(&checks[..1], START)).await;
    }
    layers.apply(&call(&checks, START)).await;
    let late = Some(Clock::System.monotonic_now());
    layers.apply(&Call { deadline: late, ..call(&checks, START) }).await;
    let expected = SharedStoreStats {
        overruns: 1,
        cached_refusals: 2,
        cached_calls: 1,
        script_calls: 5,
        ..SharedStoreStats::default()
    };
    assert_eq!(layers.shared_stats(), expected);
}
