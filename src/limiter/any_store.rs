//! Counter store of the service and the library: either the memory store, or Redis with the memory
//! store as its fallback.
//!
//! Not here: the stack with the Redis store (`redis_stack`).

#[cfg(feature = "redis")]
use std::pin::pin;

#[cfg(feature = "redis")]
use super::redis_stack::RedisStack;
use crate::domain::{Answers, Call, Micros, Receipt};
#[cfg(feature = "redis")]
use crate::store::SharedStore as _;
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// Counter store, selected at run time. Both variants are boxed to keep the enum small.
#[derive(Debug)]
pub(crate) enum AnyStore {
    /// Counters in the memory of this process.
    Memory(Box<MemoryStore>),
    /// Counters in Redis, shared by all replicas.
    #[cfg(feature = "redis")]
    Redis(RedisStack),
}

impl AnyStore {
    /// Creates a memory store for at most `keys_max` counters.
    pub(crate) fn in_memory(keys_max: usize) -> AnyStore {
        AnyStore::Memory(Box::new(MemoryStore::new(keys_max)))
    }

    /// Waits until Redis is connected. Returns immediately if the counters are in memory.
    pub(crate) async fn wait_until_connected(&self) {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.redis() {
            redis.remote().wait_until_connected().await;
        }
    }

    /// Waits until the background tasks of the store, such as refunds, have ended. Returns
    /// immediately if the counters are in memory. Called only at shutdown, after the last call.
    #[cfg(feature = "server")]
    pub(crate) async fn wait_until_idle(&self) {
        if let Some(redis) = self.redis() {
            redis.wait_until_idle().await;
        }
    }

    /// Discards cached refusals and stops spending prepaid hits. Called when the policy is
    /// replaced, because the new policy may decide the same calls differently.
    pub(crate) fn retire_policy(&self) {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.redis() {
            redis.retire_policy();
        }
    }

    /// Logs the start or the end of an outage of Redis, at most once a second. Has no effect if the
    /// counters are in memory.
    pub(crate) fn update_outage(&self, now: Micros) {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.redis() {
            redis.update_outage(now);
        }
        #[cfg(not(feature = "redis"))]
        let _ = now;
    }

    /// Returns the memory store, which is the fallback if counters are in Redis.
    pub(crate) fn memory(&self) -> &MemoryStore {
        match self {
            AnyStore::Memory(memory) => memory,
            #[cfg(feature = "redis")]
            AnyStore::Redis(redis) => redis.local(),
        }
    }
}

impl Store for AnyStore {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        match self {
            AnyStore::Memory(memory) => memory.apply(call).await,
            // Pinned here, because awaiting the future by value would copy it.
            #[cfg(feature = "redis")]
            AnyStore::Redis(redis) => {
                let answers = pin!(redis.apply(call)).await;
                // Here, because nobody else looks for outages in the library.
                redis.update_outage(call.now);
                answers
            }
        }
    }

    async fn refund(&self, receipts: &[Receipt]) {
        match self {
            AnyStore::Memory(memory) => memory.refund(receipts).await,
            #[cfg(feature = "redis")]
            AnyStore::Redis(redis) => redis.refund(receipts).await,
        }
    }
}
