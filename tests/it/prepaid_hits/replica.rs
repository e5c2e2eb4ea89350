//! A replica: prepaid hits and the refusal cache over connections to a real server.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::domain::{Answers, Check, Limit, Outcome, Verdict};
use tidegate::resilience::deadline::BUDGET_DEFAULT;
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::resilience::stack_stats::StackStats;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{RedisConfig, TopologyConfig};
use tidegate::store::redis::client::topology::RedisClient;

use crate::support::acl;
use crate::support::limits::{call, key, take};
use crate::support::real_store::{config as redis_config, counted, store};
use crate::support::redis_server::{Server, until};

/// Longer than any lot lives, and its return takes.
pub const LOTS_ARE_OVER: Duration = Duration::from_millis(300);

/// The counter that is hot in every test.
pub const HOT: u64 = 1;

/// What became of prepaid hits (calls of one hit, hits taken, and hits returned), and the calls that
/// scripts decided.
#[derive(Clone, Copy, Debug)]
pub struct PrepaidStats {
    pub prepaid_calls: u64,
    pub prepaid_hits: u64,
    pub prepaid_refunded: u64,
    pub script_calls: u64,
}

#[derive(Clone)]
pub struct Replica(pub Arc<Stack<RedisStore<RedisClient>, MemoryStore>>);

pub fn server() -> Server {
    Server::start(&[&acl::line(acl::SINGLE)])
}

impl Replica {
    /// One of so many replicas, over a single server.
    pub async fn of(server: &Server, replicas: u32) -> Replica {
        Replica::over(redis_config(TopologyConfig::Single, &[server.port]), replicas).await
    }

    pub async fn over(config: RedisConfig, replicas: u32) -> Replica {
        Replica::with(config, StackConfig { replicas, ..StackConfig::default() }).await
    }

    /// A single replica that asks Redis about every refused counter.
    pub async fn without_refusal_cache(server: &Server) -> Replica {
        Replica::with_budget(server, BUDGET_DEFAULT).await
    }

    /// The same, whose calls of [`Stack::ask`] wait this long.
    pub async fn with_budget(server: &Server, budget: Duration) -> Replica {
        let config = StackConfig { budget, replicas: 1, refusal_cache: false };
        Replica::with(redis_config(TopologyConfig::Single, &[server.port]), config).await
    }

    async fn with(redis: RedisConfig, config: StackConfig) -> Replica {
        let (store, local) = (store(redis).await, MemoryStore::new(1));
        Replica(Stack::new(store, local, config, Clock::System))
    }

    pub async fn apply(&self, checks: &[Check<'_>]) -> Answers {
        self.0.decide(&call(checks, Clock::System.now())).await
    }

    /// One hit of the hot counter.
    pub async fn hit(&self, limit: &Arc<Limit>) -> Outcome {
        let answers = self.apply(&[take(key(HOT), limit, 1)]).await;
        *answers.each[0].outcome().expect("decided")
    }

    pub fn stats(&self) -> PrepaidStats {
        let StackStats { prepaid_calls, prepaid_hits, prepaid_refunded, .. } = self.0.stats();
        let [prepaid_calls, prepaid_hits, prepaid_refunded] =
            [prepaid_calls, prepaid_hits, prepaid_refunded].map(|total| total.load(Relaxed));
        let script_calls = self.0.remote().stats().script_calls.load(Relaxed);
        PrepaidStats { prepaid_calls, prepaid_hits, prepaid_refunded, script_calls }
    }

    /// Prepaid hits that are neither spent, by calls of one hit, nor returned.
    pub fn held(&self) -> u64 {
        let stats = self.stats();
        stats.prepaid_hits - stats.prepaid_calls - stats.prepaid_refunded
    }

    /// Whether the next call is answered without Redis.
    pub async fn spends(&self, limit: &Arc<Limit>) -> bool {
        let before = self.stats().prepaid_calls;
        assert_eq!(self.hit(limit).await.verdict, Verdict::Pass);
        self.stats().prepaid_calls > before
    }

    /// Makes calls until one is answered without Redis. Returns the hits that were admitted.
    pub async fn warm(&self, limit: &Arc<Limit>) -> u64 {
        let mut admitted = 0;
        let before = self.stats().prepaid_calls;
        while self.stats().prepaid_calls == before {
            admitted += self.hit(limit).await.charged.0;
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(admitted < 10_000, "the counter never gets hot");
        }
        admitted
    }
}

/// Waits until the hits in a counter, once its lots are over, are those admitted.
pub async fn until_counted(server: &Server, check: &Check<'_>, admitted: u64) {
    until("the rest is returned", || counted(server, check) == admitted).await;
    tokio::time::sleep(LOTS_ARE_OVER).await;
    assert_eq!(counted(server, check), admitted, "returned once");
}
