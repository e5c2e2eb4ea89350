//! Random calls get identical outcomes from the memory store and from Lua on a real Redis.
//!
//! The calls are those of the contract, but with every counter in one call, blocks, time jumps of up
//! to years, and old receipts. 10,000 operations, in `make proof` 1,000,000. The seeds are printed,
//! TIDEGATE_SEED sets the first, and the seeds that once failed run each time.

use std::slice;

use tidegate::domain::{Call, Micros, Outcome, Receipt};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::store::TimeSource;

use crate::store_contract::memory_store::MemoryBench;
use crate::store_contract::random_calls::{Reference, Trace, Traffic};
use crate::store_contract::random_limits::HOLDS;
use crate::store_contract::store_under_test::decided;
use crate::support::environment::number;
use crate::support::limits::{HOUR, MINUTE, SECOND, START};
use crate::support::plain_transport::Plain;
use crate::support::proof;
use crate::support::random::Random;
use crate::support::redis_server::Server;

const OPERATIONS: u64 = 10_000;
const OPERATIONS_PROVED: u64 = 1_000_000;
/// Then new counters begin: long enough for receipts and limits to change, short enough to read.
const OPERATIONS_PER_SEED: u64 = 2_000;
const YEAR: u64 = 8_760 * HOUR;

/// What once failed: seeds, of 2,000 operations each.
const REGRESSIONS: [u64; 3] = [6, 38, 68];

#[tokio::test]
async fn memory_and_lua_answer_random_calls_alike() {
    let server = Server::start(&[]);
    let plain = Plain(server.connect().await);
    let operations = proof::times(OPERATIONS, OPERATIONS_PROVED);
    let first = number("TIDEGATE_SEED").unwrap_or(1);
    let mut done = 0;
    let regressions = REGRESSIONS.into_iter().filter(|_| first == 1);
    for seed in regressions.chain(first..) {
        let memory = MemoryBench::new(1_000_000);
        let lua = RedisStore::new(plain.clone(), Prefix::default(), TimeSource::Call);
        let has_blocks = seed % 2 == 1;
        let traffic = Traffic { counters: (0..HOLDS).collect(), clock: moved, has_blocks };
        let mut trace = Trace::new(&memory, lua, seed, traffic);
        // Every counter exists before the clock first moves: the memory store forgets what has
        // expired when it makes room for a new entry, and a clock that steps back behind that would
        // show it.
        trace.begin().await;
        let end = (done + OPERATIONS_PER_SEED).min(operations);
        println!("seed {seed}: operations {done} to {end}");
        while done < end {
            done += trace.step().await;
        }
        if done >= operations {
            return;
        }
        redis::cmd("FLUSHALL").exec_async(&mut plain.0.clone()).await.unwrap();
    }
}

impl Reference for RedisStore<Plain> {
    async fn apply(&mut self, call: &Call<'_>) -> Vec<Outcome> {
        decided(&Store::apply(self, call).await)
    }

    async fn refund(&mut self, receipt: &Receipt, _: Micros) {
        Store::refund(self, slice::from_ref(receipt)).await;
    }
}

fn moved(random: &mut Random, now: Micros) -> Micros {
    Micros(match random.below(200) {
        0..80 => now.0,
        80..110 => now.0 + random.below(2_000),
        110..150 => now.0 + random.below(SECOND),
        150..175 => now.0 + random.below(2 * MINUTE),
        175..185 => now.0 + random.below(3 * HOUR),
        185..193 => now.0.saturating_sub(random.below(3 * SECOND)),
        193..196 => now.0.saturating_sub(random.below(3 * MINUTE)),
        196 => now.0.saturating_sub(random.below(100 * HOUR)).max(START.0 / 2),
        197..199 => now.0 + random.below(100 * HOUR),
        _ => now.0 + random.below(YEAR),
    })
}
