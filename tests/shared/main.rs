//! The service that counts in Redis, as an operator meets it: how it starts, what it says of itself,
//! what docs/REDIS.md tells to type, and whom Redis must let in.
//!
//! Not here: what is counted (`tests/store_contract`), exactness (`tests/race`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "a test fails by panicking, and shares support modules that not every crate uses up"
)]

mod page;
#[path = "../cli/process.rs"]
mod process;
#[path = "../support"]
mod support {
    pub mod acl;
    pub mod process;
}
mod starting;
