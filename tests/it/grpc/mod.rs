//! The gRPC side as callers meet it: a real listener on a free port, real connections.
//!
//! What decides is a fixed judge (`harness::Bench`): this is about the wire. The cases:
//! `contract` (names and numbers), `requests` (what is refused and how), `health` (and
//! reflection), `limits`, `hostile`, `leaving`, `secured`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "tests: a fault is a panic, and the harness is shared by all"
)]

mod contract;
mod harness;
mod health;
mod hostile;
mod leaving;
mod limits;
#[path = "../support/proof.rs"]
mod proof;
mod raw;
mod requests;
mod secured;
