//! Blocks of keys in the memory store: entries beside those of the counters, in the same shards.
//!
//! A block takes an entry like a counter. It fits into no sketch: in a full store without room for it,
//! the refusal blocks nothing.
//!
//! Not here: the counters of a call (`multi_check`), when a block is in force (`algorithm::block`).

use super::MemoryStore;
use super::entry_key::EntryKey;
use super::eviction::ShardRoom;
use super::rules::RuleIdentity;
use super::shard::Shard;
use crate::algorithm::{State, block, expires_at};
use crate::domain::{Check, Micros};

impl MemoryStore {
    /// Returns the time for which the key of a check is blocked; zero if it is not.
    pub(super) fn block_left(&self, check: &Check<'_>, shard: &Shard, now: Micros) -> Micros {
        if !check.reads_block() {
            return Micros::ZERO;
        }
        let slot = shard.find(EntryKey::for_block(check.key.identity));
        block::left(slot.and_then(|slot| shard.state(slot).as_block()), check, now)
    }

    /// Removes the block of a check's key.
    pub(super) fn lift_block(&self, check: &Check<'_>, shard: &mut Shard) {
        if let Some(slot) = shard.find(EntryKey::for_block(check.key.identity)) {
            self.release(shard.remove(slot, &self.rules));
        }
    }
}

impl ShardRoom<'_> {
    /// Stores the block of a check's key.
    pub(super) fn store_block(&mut self, check: &Check<'_>, state: State) {
        let key = EntryKey::for_block(check.key.identity);
        let expires = expires_at(&state, check.limit);
        if let Some(slot) = self.shard.find(key) {
            return self.shard.replace_state(slot, state, expires);
        }
        self.reclaim_expired();
        if let Some(rule) = self.claim_entry(&RuleIdentity::for_blocks(check.limit), 1) {
            self.shard.insert(key, state, expires, rule);
        }
    }
}
