//! A check: a limit applied to one counter; and a call: the checks that are decided together.
//!
//! Not here: how checks come about (`policy::matcher`), how they are decided (`store`).

use std::sync::Arc;
use std::time::Instant;

use super::{Hits, Limit, Micros};

/// Which counter: 128 bits that stand for the domain, the limit's name, the window and the entries
/// that make the counter (`policy::key` makes them with a keyed hash).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The counter's identity.
    pub identity: u128,
    /// Where a Redis Cluster places it: the hash of the `hash_tag` entries, or `None` where the
    /// identity itself is the tag. It places counters, it never splits them.
    pub tag: Option<u128>,
}

/// What a check does to its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Take that many hits (at least 1) if they are there.
    Take {
        /// The hits, after the rule's own `cost` was multiplied in.
        cost: Hits,
    },
    /// Would one more hit pass? Takes nothing.
    Peek,
    /// The caller returns hits it took earlier; never above the capacity, never below nothing used.
    Refund {
        /// The hits, after the rule's own `cost` was multiplied in.
        cost: Hits,
    },
}

/// What a check has to say about the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It must pass.
    #[default]
    Required,
    /// Of all such checks at least one must pass.
    Quota,
    /// It has no say.
    Shadow,
}

/// Who holds a concurrency slot: 128 bits, hashed from what the caller names or drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u128);

/// A limit applied to one counter.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The counter.
    pub key: Key,
    /// The limit; shared, because a receipt outlives the call.
    pub limit: &'a Arc<Limit>,
    /// What to do.
    pub op: Op,
    /// What it has to say.
    pub role: Role,
    /// Who takes or returns a slot (concurrency only).
    pub holder: Option<Holder>,
}

/// How a refused call is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounting {
    /// A refused call charges nothing.
    #[default]
    AllOrNothing,
    /// Every check that passes is charged, whatever becomes of the call.
    Independent,
}

/// The checks that one request must pass, decided together by the store.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// At most 128 checks, in the order of the request's descriptors and of the policy file.
    pub checks: &'a [Check<'a>],
    /// How a refused call is charged.
    pub accounting: Accounting,
    /// Now, by this process: the memory store counts with it, Redis has its own clock.
    pub now: Micros,
    /// When the caller stops waiting, by the monotonic clock; `None` if it did not say.
    pub deadline: Option<Instant>,
}
