//! Swap the image of envoyproxy/ratelimit and the same calls get the same answers, but for the
//! differences that docs/MIGRATION.md lists. `manifest.yaml` is mounted and started as Kubernetes
//! would, with a real Redis; `calls.json` says what is asked and what is answered there.
//!
//! Not here: single settings and faults of theirs (`tests/cli/compatibility.rs`).

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

mod answer;
mod calls;
mod manifest;
#[path = "../cli/process.rs"]
mod process;
mod replay;
#[path = "../support"]
mod support {
    pub mod process;
}
