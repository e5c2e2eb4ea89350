//! The shared store: counters in Redis, decided by Lua.
//!
//! A call is one script call on standalone and Sentinel; on a cluster one for each slot that its
//! checks touch. The server's clock counts.
//!
//! | file | what it does |
//! |---|---|
//! | [`store`] | a call becomes script calls, their replies become answers |
//! | [`keys`] | where a counter lives |
//! | [`script`] | `lua/` as the service runs it |
//! | [`args`], [`reply`] | checks to arguments, replies to outcomes |
//! | [`told`] | both, of the algorithms that keep more than a number or two |
//! | `split`, `seen` | calls over several slots of a cluster |
//! | [`transport`] | what the store asks of its connections |
//! | [`config`], [`connections`], [`counters`] | the connections: made from, open, counted |
//! | `master`, `sentinel` | one node holds every key; who it is |
//! | `cluster`, `slots`, `refresh` | the router, its table, and how that stays fresh |
//! | `node`, `lane`, `ticket` | one server; one connection; one item on its way |
//! | [`vitals`], `census` | what a node says of itself, and asking for it |
//! | `breaker`, `guard` | a node that does not answer is not asked; how that is noticed |
//! | `dial`, `secured`, `backoff`, `fault` | opening connections; their TLS; waiting to; what error replies mean |
//!
//! Not here: deadlines, fallbacks, remembered refusals (`resilience`).

pub mod args;
pub mod config;
pub mod connections;
pub mod counters;
pub mod fault;
pub mod keys;
pub mod pack;
pub mod reply;
pub mod script;
pub mod slots;
pub mod store;
pub mod told;
pub mod transport;
pub mod vitals;
mod way;

mod backoff;
mod breaker;
mod census;
mod cluster;
mod dial;
mod guard;
mod lane;
mod master;
mod node;
mod plan;
mod refresh;
mod secured;
mod seen;
mod sentinel;
mod split;
mod ticket;

pub use store::RedisStore;
