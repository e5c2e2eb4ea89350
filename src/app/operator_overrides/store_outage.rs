//! Simulated outage of Redis, to rehearse one.

use std::time::{Duration, Instant};

use crate::domain::Lock;
use crate::limiter::redis_stack::RedisStack;

/// End of the simulated outage of Redis, if there is one with an end.
#[derive(Debug, Default)]
pub(crate) struct StoreOutage(Lock<Option<Instant>>);

impl StoreOutage {
    /// Makes the service act as if Redis were unavailable, for `lifetime` or, if that is `None`, until
    /// [`end`](Self::end) is called.
    pub(crate) fn start(&self, redis: &RedisStack, lifetime: Option<Duration>, now: Instant) {
        *self.0.lock() = lifetime.map(|lifetime| now + lifetime);
        redis.set_store_disabled(true);
        let seconds = lifetime.map(|lifetime| lifetime.as_secs());
        tracing::warn!(seconds, "Redis disabled by hand");
    }

    /// Ends a simulated outage of Redis.
    pub(crate) fn end(&self, redis: &RedisStack) {
        *self.0.lock() = None;
        redis.set_store_disabled(false);
        tracing::warn!("Redis enabled again");
    }

    /// Ends a simulated outage whose time is over.
    pub(crate) fn expire(&self, redis: &RedisStack, now: Instant) {
        let is_over = self.0.lock().is_some_and(|until| until <= now);
        if is_over {
            self.end(redis);
        }
    }
}
