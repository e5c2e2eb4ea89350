//! Builds the process's store: the memory store, or Redis with the memory store as fallback.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::redis_config::redis_config;
use crate::app::exit_codes::Failure;
use crate::clock::Clock;
use crate::decide::Decider;
use crate::domain::{Answers, Call, Receipt};
use crate::policy::Secret;
use crate::resilience::deadline::Deadline;
use crate::resilience::fallback::{Fallback, FallbackConfig};
use crate::resilience::refusal_cache::RefusalCache;
use crate::settings::Settings;
use crate::store::memory::MemoryStore;
use crate::store::redis::RedisStore;
use crate::store::redis::client::topology::RedisClient;
use crate::store::redis::client::transport::Transport;
use crate::store::redis::script::library::PRODUCTION;
use crate::store::redis::store::TimeSource;
use crate::store::{SharedStore as _, Store};
use crate::telemetry::Telemetry;

/// Redis store with its wrappers, outermost first: fallback to the memory store, deadline, refusal
/// cache.
pub(crate) type RedisStack = Fallback<Deadline<RefusalCache<RedisStore<RedisClient>>>, MemoryStore>;

/// Decider of the running service. It uses the configured store and reports its decisions to
/// telemetry.
pub(crate) type ServiceDecider = Decider<AnyStore, Arc<Telemetry>>;

/// Maximum time to wait for Redis under `--require-store`, 10 s. Loading a data set or electing a
/// master with Sentinel takes seconds. If Redis takes longer, the process exits with code 69 and
/// its supervisor retries.
const REQUIRED_CONNECT_MAX: Duration = Duration::from_secs(10);

/// Counter store selected by `--store`.
#[derive(Debug)]
pub(crate) enum AnyStore {
    /// Counters in the memory of this process. Both variants are boxed, so that the enum stays
    /// small.
    Memory(Box<MemoryStore>),
    /// Counters in Redis, shared by all replicas.
    Redis(Box<RedisStack>),
}

impl AnyStore {
    /// Opens the configured store. Connections to Redis are opened in the background and run on the
    /// `workers` runtimes, so that each worker's calls can use a connection on its own runtime.
    pub(crate) fn open(
        settings: &Settings,
        secret: &Secret,
        workers: Vec<Handle>,
    ) -> Result<AnyStore, Failure> {
        if !settings.counts_in_redis() {
            return Ok(AnyStore::Memory(Box::new(MemoryStore::new(settings.max_keys))));
        }
        let redis = settings.redis().map_err(|error| Failure::Settings(vec![error]))?;
        let config = redis_config(&redis, secret, workers)?;
        let prefix = config.prefix.clone();
        let connections = RedisClient::open(config, PRODUCTION.all().to_vec())
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let is_cluster = connections.is_cluster();
        let store = RedisStore::new(connections, prefix, TimeSource::Server);
        let cached = RefusalCache::new(store, is_cluster).enabled(settings.refusal_cache);
        let remote = Deadline::new(cached, redis.budget, Clock::System);
        let local = MemoryStore::new(settings.max_keys);
        let fallback = FallbackConfig { replicas: settings.replicas };
        Ok(AnyStore::Redis(Box::new(Fallback::new(remote, local, fallback))))
    }

    /// Waits until Redis is connected, so that the first calls to a new replica do not fail.
    /// Without `--require-store`, the wait is short, because calls can be decided without Redis.
    /// Returns whether the store is connected.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Store`] if `--require-store` is set and Redis was not reached within ten
    /// seconds.
    pub(crate) async fn until_ready(&self, settings: &Settings) -> Result<bool, Failure> {
        let AnyStore::Redis(redis) = self else { return Ok(true) };
        let is_required = settings.require_store;
        let wait_max = if is_required { REQUIRED_CONNECT_MAX } else { settings.redis_timeout };
        match tokio::time::timeout(wait_max, redis.remote().until_connected()).await {
            Ok(()) => {
                tracing::info!("Redis is connected");
                Ok(true)
            }
            Err(_) if is_required => {
                let cause =
                    redis.remote().failure().map_or(String::new(), |why| format!(": {why}"));
                Err(Failure::Store(format!(
                    "--require-store: Redis was not reached within {wait_max:?}{cause}"
                )))
            }
            Err(_) => {
                tracing::warn!("Redis is not connected, starting without it");
                Ok(false)
            }
        }
    }

    /// Clears the refusal cache, because a new policy may admit what the previous policy rejected.
    pub(crate) fn clear_refusals(&self) {
        if let AnyStore::Redis(redis) = self {
            redis.remote().clear_refusals();
        }
    }

    /// Returns the memory store, which is the fallback if Redis is configured.
    pub(crate) fn memory(&self) -> &MemoryStore {
        match self {
            AnyStore::Memory(memory) => memory,
            AnyStore::Redis(redis) => redis.local(),
        }
    }

    /// Returns the Redis store with its wrappers, or `None` if counters are in memory.
    pub(crate) fn redis(&self) -> Option<&RedisStack> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(redis) => Some(redis),
        }
    }
}

impl Store for AnyStore {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        match self {
            AnyStore::Memory(memory) => memory.apply(call).await,
            // Boxed, because this future is twice as large as the memory store's.
            AnyStore::Redis(redis) => Box::pin(redis.apply(call)).await,
        }
    }

    async fn refund(&self, receipts: &[Receipt]) {
        match self {
            AnyStore::Memory(memory) => memory.refund(receipts).await,
            AnyStore::Redis(redis) => redis.refund(receipts).await,
        }
    }
}
