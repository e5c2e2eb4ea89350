//! Redis store: keeps counters in Redis, where Lua scripts decide calls.
//!
//! The calls of one write share a script call if their limits allow it; others have one of their own.
//! On a cluster, a call has a part on each node that holds its counters. Limits use the clock of the
//! Redis server.
//!
//! | file | contents |
//! |---|---|
//! | [`store`] | sends calls, and decodes the replies |
//! | `one_part`, `multi_part` | the wait of a call's caller; the task that owns a call of several parts |
//! | `multi_slot` | calls whose counters are in several slots of a cluster |
//! | `node_scripts` | scripts that decide all checks on one cluster node, and when they are used |
//! | `override_store` | overrides at run time, off the path of requests |
//! | [`script`] | chooses a script, encodes its arguments, decodes its reply |
//! | [`client`] | connections, topologies, circuit breakers |
//!
//! Not here: deadlines, fallback, the refusal cache (`resilience`).

pub mod client;
mod multi_part;
mod multi_slot;
mod node_scripts;
mod one_part;
#[cfg(feature = "server")]
pub(crate) mod override_store;
pub mod script;
pub mod store;

pub use store::RedisStore;
