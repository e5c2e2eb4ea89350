//! The Redis client: pipelined connections, the topologies, and node failures.
//!
//! | file | contents |
//! |---|---|
//! | [`transport`] | the trait through which the store sends script calls |
//! | [`topology`] | the client itself: one of the topologies behind that trait |
//! | `single_master`, `sentinel` | one server, or the master that the sentinels name |
//! | `cluster`, [`slot_table`], `slot_refresh` | Redis Cluster: routing, the slot table, its refresh |
//! | `node` | one server: its connections, its breaker, its statistics |
//! | `connection`, `pending_command` | one pipelined connection; the commands in its queue and in flight |
//! | `circuit_breaker`, `node_breaker` | the breaker's state machine; the breaker of one node |
//! | `dialer`, `client_tls`, `backoff` | opening connections, their TLS, the wait between attempts |
//! | [`error_reply`] | what each error reply means |
//! | [`info`], `info_poll` | what INFO reports, and polling it |
//! | [`config`], [`node_stats`] | configuration; statistics per node |
//!
//! Not here: which script a call runs and with which arguments (`script`).

mod backoff;
mod circuit_breaker;
mod client_tls;
mod cluster;
pub mod config;
mod connection;
mod dialer;
pub mod error_reply;
pub mod info;
mod info_poll;
mod node;
mod node_breaker;
pub mod node_stats;
mod pending_command;
mod sentinel;
mod single_master;
mod slot_refresh;
pub mod slot_table;
pub mod topology;
pub mod transport;
