//! Whatever comes in from outside, fed by the million, in process: bytes of callers, policies, what
//! Redis says and what it stores, settings and certificates. Nothing may panic, hang, or break what
//! each target says of its answers. Briefly in `make test`, longer in `make proof`, as long as you
//! like by `make fuzz N=…`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "tests panic to fail, and share support modules that not every crate uses up"
)]

mod certificates;
mod harness;
mod policies;
mod random;
mod replies;
mod requests;
mod settings;
mod states;
mod stored;

#[path = "../support/authority.rs"]
mod authority;
#[path = "../lua/limits.rs"]
mod limits;
#[path = "../support/random.rs"]
mod numbers;
#[path = "../support/pieces.rs"]
mod pieces;
#[path = "../support/proof.rs"]
mod proof;
#[path = "../support/redis.rs"]
mod redis_server;
#[path = "../support/vectors.rs"]
mod vectors;

use std::hash::{DefaultHasher, Hash, Hasher};

/// A sort of outcome as a number.
fn sort(outcome: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    outcome.hash(&mut hasher);
    hasher.finish()
}
