//! What several test binaries of Tidegate share and what needs none of its types: the processes that
//! they start, proxies that disturb connections, waits.
//!
//! It does not depend on the package `tidegate`, so that unit tests need not build the library twice.
//! Not here: limits, policies, and requests as Tidegate's types (`tests/it/support`).

#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::panic,
    clippy::print_stdout,
    clippy::should_implement_trait,
    clippy::unwrap_used,
    reason = "a test fails by panicking, and waits for real processes with deadlines"
)]

pub mod acl;
pub mod certificate_authority;
pub mod child_process;
pub mod environment;
pub mod fault_proxy;
pub mod heavy;
pub mod http;
pub mod memory_cgroup;
pub mod proof;
pub mod random;
pub mod raw_http2;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redis_server;
pub mod tidegate_process;
pub mod wait;
