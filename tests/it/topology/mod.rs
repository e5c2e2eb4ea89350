//! Connections and topologies on real servers: what is carried is answered once, each item on its
//! own; no charge is counted twice, whatever fails; and what failed comes back without a restart.
//!
//! Every test runs under the least-privilege ACL of `support/acl.rs`. Not here: what scripts count.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "a test fails by panicking, prints what it records, and is patient by the machine's clock"
)]

mod load;
mod single;

mod cluster;

mod login;

mod sentinel;

#[path = "../support"]
mod support {
    pub mod acl;
    pub mod cluster;
    pub mod process;
    pub mod proxy;
    pub mod sentinel;
}
