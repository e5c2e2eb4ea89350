//! Every integration test but the fuzzer and the fault bench, in one binary that is linked once.
//!
//! A suite is a directory. Tests run in the order of their names, and `make test` runs more of them at a
//! time than there are cores (RUST_TEST_THREADS). Tests that load the whole machine take turns
//! (`support::heavy`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a test fails by panicking, and nothing imports this crate"
)]

mod algorithm;
mod architecture;
mod call_ownership;
mod cli;
mod control_plane;
mod decisions;
mod docs;
mod envoy;
mod gateways;
mod grpc;
mod hostile;
mod library;
mod limits_service;
mod lua;
mod matcher;
mod migration;
mod mistakes;
mod operator_overrides;
mod policy;
mod prepaid_hits;
mod race;
mod resilience;
mod simulate;
mod store_contract;
mod support;
mod telemetry;
mod topology;
