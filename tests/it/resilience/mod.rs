//! What stands between a decision and its store.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "tests panic to fail, and share support modules that not every crate uses up"
)]

mod fallback;
mod outage;
mod remember;
#[path = "../support/vectors.rs"]
mod vectors;

#[path = "../support"]
mod support {
    pub mod process;
    pub mod proxy;
}
