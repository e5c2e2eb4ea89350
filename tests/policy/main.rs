//! The policy language as a whole: files in, meaning or every fault out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "a test that cannot go on should stop loudly, and nobody imports it"
)]

mod bad;
mod fuzz;
mod good;
mod key_tables;
mod limits;
mod rows;
mod schema;
mod support;
mod together;
mod warnings;

#[path = "../support/pieces.rs"]
mod pieces;
