//! The shared store: counters in Redis, decided by Lua.
//!
//! A call is one script call on standalone and Sentinel; on a cluster one for each slot that its
//! checks touch. The server's clock counts.
//!
//! | file | what it does |
//! |---|---|
//! | [`store`] | a call becomes script calls, their replies become answers |
//! | [`keys`] | where a counter lives |
//! | `multi_slot`, `near_limit_hints` | calls over several slots of a cluster |
//! | [`script`] | which script decides a call, its arguments, its reply |
//! | [`client`] | connections, topologies, circuit breakers |
//!
//! Not here: deadlines, fallbacks, the refusal cache (`resilience`).

pub mod client;
pub mod keys;
mod multi_slot;
mod near_limit_hints;
pub mod script;
pub mod store;

pub use store::RedisStore;
