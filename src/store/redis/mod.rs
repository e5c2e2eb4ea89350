//! The shared store: counters in Redis, decided by Lua scripts.
//!
//! A call is one script call; on a cluster, one per slot of its keys. Time is that of the server.
//!
//! | file | contents |
//! |---|---|
//! | [`store`] | the store: turns a call into script calls, and their replies into answers |
//! | [`keys`] | the key of a counter, and its cluster slot |
//! | `multi_slot`, `near_limit_hints` | calls over several slots of a cluster |
//! | [`script`] | choosing a script, its arguments, its reply |
//! | [`client`] | connections, topologies, circuit breakers |
//!
//! Not here: deadlines, fallback, the refusal cache (`resilience`).

pub mod client;
pub mod keys;
mod multi_slot;
mod near_limit_hints;
pub mod script;
pub mod store;

pub use store::RedisStore;
