//! What a request is answered, from policy text to decision, on the embedded store: every row of
//! envoyproxy/ratelimit's request semantics, as Tidegate keeps, fixes or extends it.
//!
//! Not here: the wire (tests/grpc), a real Envoy (tests/envoy), matching in detail (tests/matcher).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    dead_code,
    reason = "a test fails by panicking, and its support is shared by its modules and other crates"
)]

mod accounting;
mod bench;
mod classes;
mod codes;
mod edges;
mod failures;
mod foreseen;
mod hits;
mod lists;
mod overrides;
mod samples;
mod slots;
mod stats;
mod statuses;

#[path = "../support/random.rs"]
mod random;
