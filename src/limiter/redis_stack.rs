//! Stack with the Redis store. The service and the library build it here, so that both use the same.
//!
//! Not here: the settings of the service (`app`), the options of the library (`redis_options`).

use std::sync::Arc;

use super::any_store::AnyStore;
use crate::clock::Clock;
use crate::policy::Secret;
use crate::resilience::stack::{Stack, StackConfig};
use crate::store::memory::MemoryStore;
use crate::store::redis::RedisStore;
use crate::store::redis::client::config::{MonotonicClock, RedisConfig, RedisConfigError};
use crate::store::redis::client::topology::RedisClient;
use crate::store::redis::script::keys::key_format;
use crate::store::redis::script::library::PRODUCTION;
use crate::store::redis::store::TimeSource;

/// Stack that calls Redis and falls back to the memory store.
pub(crate) type RedisStack = Arc<Stack<RedisStore<RedisClient>, MemoryStore>>;

impl AnyStore {
    /// Creates a stack with a Redis store, and a memory store for at most `keys_max` counters.
    /// Connections are opened in the background, on the current tokio runtime or on the worker
    /// runtimes of `client`, whose timeouts follow from the budget of `stack`. `secret` hashes the
    /// counter keys, and `clock` measures outages.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no address or a certificate cannot be parsed.
    pub(crate) fn open_redis(
        client: RedisConfig,
        stack: StackConfig,
        secret: &Secret,
        keys_max: usize,
        clock: Clock,
    ) -> Result<AnyStore, RedisConfigError> {
        let prefix = client.prefix.clone();
        let client = RedisConfig {
            meta: key_format(&secret.fingerprint()),
            breaker_clock: Some(MonotonicClock::new(|| Clock::System.monotonic_now())),
            ..client.with_budget(stack.budget)
        };
        let connections = RedisClient::open(client, PRODUCTION.all().to_vec())?;
        let store = RedisStore::new(connections, prefix, TimeSource::Server);
        Ok(AnyStore::Redis(Stack::new(store, MemoryStore::new(keys_max), stack, clock)))
    }

    /// Returns the stack with the Redis store, or `None` if counters are in memory.
    pub(crate) fn redis(&self) -> Option<&RedisStack> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(redis) => Some(redis),
        }
    }
}
