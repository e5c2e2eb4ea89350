//! The Redis store: counters in Redis, shared by all replicas, decided by Lua scripts.
//!
//! A call is one script call on a standalone server or behind Sentinel, and one per slot on a cluster.
//! The Redis server's clock applies.
//!
//! | file | what it does |
//! |---|---|
//! | [`store`] | turns a call into script calls, and their replies into answers |
//! | [`keys`] | the key and the cluster slot of a counter |
//! | `multi_slot`, `near_limit_hints` | calls over several slots of a cluster |
//! | [`script`] | which script decides a call, its arguments, its reply |
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
