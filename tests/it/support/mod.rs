//! Helpers with types of Tidegate that several suites share: the limits and policies they build, the
//! vectors they read. `tests/fuzz` and `tests/faults` include this directory by its path. Processes,
//! proxies, and waits are in the package of `tests/support`.

#![allow(clippy::disallowed_methods, reason = "waits for real processes, with deadlines")]

pub mod drawn_check;
pub mod grpc_client;
pub mod limits;
pub mod messages;
pub mod paired_waits;
pub mod plain_transport;
pub mod policy_cases;
pub mod policy_specs;
pub mod real_store;
pub mod requests;
pub mod script_bench;
pub mod vectors;
pub mod yaml_fragments;

pub use tidegate_test_support::*;
