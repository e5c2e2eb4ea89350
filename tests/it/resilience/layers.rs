//! The stack above a shared store counts what it decides itself.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::domain::{Answers, Call, Receipt};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::resilience::stack_stats::StackStats;
use tidegate::store::memory::MemoryStore;
use tidegate::store::{SharedStore, Store};

use crate::support::limits::{HOUR, START, call, key, take, window};

/// A shared store that is away and has lost counters three times.
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

    fn is_available(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn the_stack_counts_what_it_decides_itself() {
    let (remote, local) = (Reporting(MemoryStore::new(1_000)), MemoryStore::new(1));
    let config = StackConfig { budget: Duration::from_secs(3_600), ..StackConfig::default() };
    let (stack, limit) = (Stack::new(remote, local, config, Clock::System), window(1, HOUR));
    let checks = [take(key(1), &limit, 1); 2];
    for _ in 0..2 {
        stack.ask(&call(&checks[..1], START)).await;
    }
    stack.ask(&call(&checks, START)).await;
    let late = Some(Clock::System.monotonic_now());
    stack.ask(&Call { deadline: late, ..call(&checks, START) }).await;
    let StackStats { overruns, cached_refusals, cached_calls, .. } = stack.stats();
    let counted = [overruns, cached_refusals, cached_calls].map(|total| total.load(Relaxed));
    assert_eq!(counted, [1, 2, 1]);
}
