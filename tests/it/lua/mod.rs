//! The Lua scripts on a real Redis: equality with the Rust arithmetic, key layout, expiry, corrupt
//! values, concurrent callers, and a server that lost its scripts.
//!
//! Not here: the store contract, which also runs on Redis (`store_contract/redis_store.rs`).

mod bounded_work;
mod canned_replies;
mod clamped_counters;
mod concurrent_callers;
mod corrupt_values;
mod expiry;
mod extreme_numbers;
mod holds;
mod key_layout;
mod lua_equals_memory;
mod multi_slot;
mod node_scripts;
mod reply_decoder;
mod script_headers;
mod write_calls;

use std::sync::Arc;

use tidegate::domain::Limit;

use crate::support::limits::{HOUR, MINUTE, bucket, credits, window};

/// A fixed window and a bucket of either kind, each with the capacity given.
fn window_and_buckets(capacity: u64) -> [Arc<Limit>; 3] {
    [window(capacity, HOUR), bucket(capacity, MINUTE), credits(capacity, 7, HOUR)]
}
