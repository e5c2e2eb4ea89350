//! The Lua scripts on a real Redis: that they equal the Rust arithmetic (the store's contract does
//! most of that, `tests/store_contract/redis.rs`), where they keep what, and what they make of
//! damage, contention and a server that forgot them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "tests panic to fail, and share support modules that not every crate uses up"
)]

mod contention;
mod damage;
mod differential;
mod expiry;
mod extremes;
mod headers;
mod keys;
mod limits;
#[path = "../support/proof.rs"]
mod proof;
#[path = "../support/random.rs"]
mod random;
#[path = "../support/redis.rs"]
mod redis_server;
mod replies;
mod several_slots;
#[path = "../support/vectors.rs"]
mod vectors;
