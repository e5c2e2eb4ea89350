//! Connections to real Redis topologies (single, Sentinel, Cluster): every command is answered
//! once, no charge is counted twice whatever fails, and connections recover without a restart.
//!
//! Every test runs under the least-privilege ACL of `support/acl.rs`. Not here: what scripts count
//! (`lua`).

mod cluster;
mod counting_load;
mod credentials;
mod moving_slots;
mod random_calls;
mod rotated_passwords;
mod sentinel;
mod shared_writes;
mod single;
