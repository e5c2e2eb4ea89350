//! Helpers that several suites share: the processes they start, the limits and policies they build,
//! the vectors they read. `tests/fuzz` and `tests/faults` include this directory by its path.

#![allow(clippy::disallowed_methods, reason = "waits for real processes, with deadlines")]

pub mod acl;
pub mod black_hole_proxy;
pub mod certificate_authority;
pub mod drawn_check;
pub mod environment;
pub mod grpc_client;
pub mod heavy;
pub mod http;
pub mod limits;
pub mod memory_cgroup;
pub mod messages;
pub mod paired_waits;
pub mod plain_transport;
pub mod policy_cases;
pub mod policy_specs;
pub mod proof;
pub mod random;
pub mod raw_http2;
pub mod real_store;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redis_server;
pub mod requests;
pub mod script_bench;
pub mod slow_proxy;
pub mod tidegate_process;
pub mod vectors;
pub mod wait;
pub mod yaml_fragments;
