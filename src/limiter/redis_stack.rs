//! Redis store with all of its wrappers. The service and the library build it here, so that both
//! use the same wrappers.
//!
//! Not here: the settings of the service (`app`), the options of the library (`redis_options`).

use std::sync::Arc;
use std::time::Duration;

use super::any_store::AnyStore;
use crate::clock::Clock;
use crate::resilience::deadline::Deadline;
use crate::resilience::fallback::{Fallback, FallbackConfig};
use crate::resilience::prepaid_hits::PrepaidHits;
use crate::resilience::refusal_cache::RefusalCache;
use crate::store::memory::MemoryStore;
use crate::store::redis::RedisStore;
use crate::store::redis::client::config::{RedisConfig, RedisConfigError};
use crate::store::redis::client::topology::RedisClient;
use crate::store::redis::script::library::PRODUCTION;
use crate::store::redis::store::TimeSource;

/// Redis store with its wrappers, outermost first: fallback to the memory store, deadline, refusal
/// cache, prepaid hits.
pub(crate) type RedisStack =
    Arc<Fallback<Deadline<RefusalCache<PrepaidHits<RedisStore<RedisClient>>>>, MemoryStore>>;

/// Configuration of the wrappers of a [`RedisStack`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RedisStackConfig {
    /// Maximum time that a call waits for Redis.
    pub(crate) budget: Duration,
    /// Number of replicas that share the limits; at least 1. The maximum number of prepaid hits is
    /// divided by this number. While Redis does not reply, each limit is divided by it, too.
    pub(crate) replicas: u32,
    /// Whether to use the refusal cache, which repeats recent refusals without a call to Redis.
    pub(crate) refusal_cache: bool,
    /// Maximum number of counters in the memory store.
    pub(crate) keys_max: usize,
}

impl AnyStore {
    /// Creates a Redis store with its wrappers. Connections are opened in the background, on the
    /// current tokio runtime or on the worker runtimes of `client`. `clock` measures outages.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no address or a certificate cannot be parsed.
    pub(crate) fn open_redis(
        client: RedisConfig,
        config: RedisStackConfig,
        clock: Clock,
    ) -> Result<AnyStore, RedisConfigError> {
        let prefix = client.prefix.clone();
        let connections = RedisClient::open(client, PRODUCTION.all().to_vec())?;
        let store = RedisStore::new(connections, prefix, TimeSource::Server);
        let prepaid = PrepaidHits::new(store, config.replicas, Clock::System);
        let cached = RefusalCache::new(prepaid).enabled(config.refusal_cache);
        let remote = Deadline::new(cached, config.budget, Clock::System);
        let local = MemoryStore::new(config.keys_max);
        let fallback = FallbackConfig { replicas: config.replicas };
        Ok(AnyStore::Redis(Fallback::new(remote, local, fallback, clock)))
    }

    /// Returns the Redis store with its wrappers, or `None` if counters are in memory.
    pub(crate) fn redis(&self) -> Option<&RedisStack> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(redis) => Some(redis),
        }
    }
}
