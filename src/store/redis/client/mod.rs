//! The client: connections to Redis nodes, the topologies, and what happens when a node fails.
//!
//! | file | what it does |
//! |---|---|
//! | [`transport`] | what the store asks of its connections |
//! | [`config`], [`topology`], [`node_stats`] | settings of the connections; all of them; their counters |
//! | `topology`, `single_master`, `sentinel`, `cluster` | which node is asked |
//! | [`slot_table`], `slot_refresh` | a cluster's slots, and how the table stays fresh |
//! | `node`, `connection`, `pending_command` | one server; one connection; one command on its way |
//! | `circuit_breaker`, `node_breaker` | a node that does not answer is not asked |
//! | `connect`, `client_tls`, `backoff` | opening connections; their TLS; waiting to |
//! | [`error_reply`] | what error replies mean |
//! | [`info`], `info_poll` | what a node says of itself |
//!
//! Not here: what the commands are (`script`).

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
