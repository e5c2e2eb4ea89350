//! Key of an entry of the memory store, and the bits of it that select a shard, a place in the index,
//! and the cells of a sketch.

/// Key of an entry: the counter's 128-bit identity as two 64-bit words, so that an entry is aligned
/// to 8 bytes rather than 16.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EntryKey(pub(super) [u64; 2]);

impl EntryKey {
    /// Returns the entry key of a counter. The key ignores the counter's hash tag, which only
    /// determines the hash slot in a Redis Cluster.
    pub(super) fn for_counter(identity: u128) -> EntryKey {
        let low = identity & u128::from(u64::MAX);
        EntryKey([u64::try_from(low).unwrap_or(0), u64::try_from(identity >> 64).unwrap_or(0)])
    }

    /// Returns the entry key of the block of a counter's key, which is in the counter's shard.
    /// Identities are keyed hashes, so any nonzero mask works.
    pub(super) fn for_block(identity: u128) -> EntryKey {
        let EntryKey([low, high]) = EntryKey::for_counter(identity);
        EntryKey([low ^ 0x5bd1_e995_9e37_79b9, high])
    }

    /// Returns the half of the key that serves as the hash in the index. The other half selects the
    /// shard. The identity is already a keyed hash, so nobody without the hash key can choose
    /// identities whose bits collide.
    pub(super) fn hash(self) -> u64 {
        self.0[0]
    }

    /// Returns the half of the key whose lowest bits select the shard.
    pub(super) fn shard_bits(self) -> u64 {
        self.0[1]
    }

    /// Returns the 64 bits that select a key's cells in a sketch. Mixes both halves of the key,
    /// because all keys of a shard have the same lowest bits in one half.
    pub(super) fn sketch_bits(self) -> u64 {
        let mixed = (self.0[0] ^ self.0[1].rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    }
}
