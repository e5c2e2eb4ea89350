//! The Redis store, on one real server, against the contract.
//!
//! The scripts run strictly and take the call's time for their own.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::clock::ManualClock;
use tidegate::domain::{Key, Micros, Source};
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::keys::Prefix;
use tidegate::store::redis::store::Timing;

use crate::bench::{Bench, START};
use crate::contract;
use crate::memory::spread;
use crate::redis_server::{Plain, Server};

pub struct RedisBench {
    store: RedisStore<Plain>,
    clock: ManualClock,
    salt: u64,
    _server: Server,
}

impl RedisBench {
    pub async fn new() -> RedisBench {
        static BENCHES: AtomicU64 = AtomicU64::new(1);
        let server = Server::start(&[]);
        let transport = Plain(server.connect().await);
        RedisBench {
            store: RedisStore::new(transport, Prefix::default(), Timing::OfTheCall),
            clock: ManualClock::at(START),
            salt: BENCHES.fetch_add(1, Ordering::Relaxed),
            _server: server,
        }
    }
}

impl Bench for RedisBench {
    type Store = RedisStore<Plain>;

    fn store(&self) -> &RedisStore<Plain> {
        &self.store
    }

    fn source(&self) -> Source {
        Source::Redis
    }

    fn now(&self) -> Micros {
        self.clock.get()
    }

    fn set(&self, now: Micros) {
        self.clock.set(now);
    }

    fn key(&self, n: u64) -> Key {
        Key { identity: spread(self.salt, n), tag: Some(spread(self.salt, u64::MAX)) }
    }
}

contract!(standalone, crate::redis::RedisBench::new().await);
