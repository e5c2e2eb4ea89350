//! The memory store against the contract.

use tidegate::clock::ManualClock;
use tidegate::domain::{CounterKey, Source};
use tidegate::store::memory::MemoryStore;

use super::contract;
use super::store_under_test::{Bench, START};
use crate::support::proof::times;

pub struct MemoryBench {
    pub store: MemoryStore,
    clock: ManualClock,
}

impl MemoryBench {
    pub fn new(max_keys: usize) -> MemoryBench {
        MemoryBench { store: MemoryStore::new(max_keys), clock: ManualClock::at(START) }
    }
}

impl Bench for MemoryBench {
    type Store = MemoryStore;

    fn store(&self) -> &MemoryStore {
        &self.store
    }

    fn source(&self) -> Source {
        Source::Memory
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn traces(&self) -> u64 {
        times(160, 1_600)
    }

    fn key(&self, n: u64) -> CounterKey {
        CounterKey { identity: spread(0, n), tag: None }
    }
}

/// 128 bits as evenly spread as those of a keyed hash.
pub fn spread(salt: u64, n: u64) -> u128 {
    let hash = blake3::hash(&[salt.to_le_bytes(), n.to_le_bytes()].concat());
    u128::from_le_bytes(hash.as_bytes()[..16].try_into().unwrap())
}

contract!(contract, crate::store_contract::memory_store::MemoryBench::new(1_000_000));
