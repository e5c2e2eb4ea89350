//! Redis client: topologies, pipelined connections, and circuit breakers.
//!
//! | file | contents |
//! |---|---|
//! | [`transport`] | the trait through which the store sends script calls |
//! | [`topology`] | [`RedisClient`](topology::RedisClient), which implements that trait over one topology |
//! | `single_master`, `sentinel` | one server; following the master that the sentinels report |
//! | `cluster`, [`slot_table`], `slot_refresh` | Redis Cluster: routing, the slot table, its refresh |
//! | `node` | one Redis server: its connections, circuit breaker, and statistics |
//! | `connection`, `connection_state` | the task of one pipelined connection; what the task holds |
//! | `pending_command` | commands queued for a connection and in flight |
//! | `reply_slot` | passing the reply to a command from its connection to its caller |
//! | `connection_write` | encoding queued commands into one socket write |
//! | [`shared_write`] | the calls of a write that share one script call |
//! | `connection_probe` | PINGs while the circuit breaker is open |
//! | `connection_load` | estimate of whether a reply can arrive in time |
//! | `node_state`, `circuit_breaker` | what callers and connections of a node share; state machine of its circuit breaker |
//! | `client_context`, `client_tls` | what all connections share; opening them, TLS |
//! | `dialer`, `backoff` | the handshake of connections for script calls; waits between attempts |
//! | `misconfiguration` | detection of settings that do not fit the server |
//! | `loss_detector` | detection of lost counters |
//! | `side_connection` | a connection for commands that are not on the path of a request |
//! | [`send_error`] | errors of requests: did the script run, what failed |
//! | [`error_reply`] | classification of error replies: did the script run, does a retry help |
//! | [`info`], `info_poll` | parsing INFO, and polling it |
//! | [`config`], [`node_stats`] | configuration; statistics per node |
//!
//! Not here: which script a call runs and with which arguments (`script`).

mod backoff;
mod circuit_breaker;
pub(crate) mod client_context;
mod client_tls;
mod cluster;
pub mod config;
mod connection;
mod connection_load;
mod connection_probe;
mod connection_state;
mod connection_write;
mod dialer;
pub mod error_reply;
pub mod info;
mod info_poll;
mod loss_detector;
mod misconfiguration;
mod node;
mod node_state;
pub mod node_stats;
mod pending_command;
mod reply_slot;
pub mod send_error;
mod sentinel;
pub mod shared_write;
#[cfg(feature = "server")]
pub(crate) mod side_connection;
mod single_master;
mod slot_refresh;
pub mod slot_table;
pub mod topology;
pub mod transport;
