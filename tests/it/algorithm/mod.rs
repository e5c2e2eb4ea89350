//! The pure functions of `algorithm`: the shared vectors, and the promises of each algorithm over
//! random traces. Not here: stores.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "tests panic to fail, and share support modules that not every crate uses up"
)]

mod bounds;
mod doubles;
mod governor;
mod honesty;
mod traces;
#[path = "../support/vectors.rs"]
mod vectors;
mod vectors_hold;
