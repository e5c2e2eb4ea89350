//! Fuzzes everything that comes from outside, in process, by the million: bytes of callers,
//! policies, Redis replies and stored values, settings, certificates. Nothing may panic, hang, or
//! break what its target claims. Briefly in `make test`, longer in `make proof`, as long as you
//! like by `make fuzz N=…`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a test fails by panicking, prints what it found, and is not imported"
)]

mod certificates;
mod fuzzer;
mod mutation;
mod policies;
mod replies;
mod requests;
mod settings;
mod states;
mod stored;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "the fuzzer needs only some of the shared helpers")]
mod support;

use std::hash::{DefaultHasher, Hash, Hasher};

/// A sort of outcome as a number.
fn sort(outcome: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    outcome.hash(&mut hasher);
    hasher.finish()
}
