//! Redis store: keeps counters in Redis, where Lua scripts decide calls.
//!
//! A call is sent as one script call. On a cluster, it is sent as one script call per node or per
//! hash slot. Calls far from every limit are sent as plain commands instead. Limits use the clock
//! of the Redis server.
//!
//! | file | contents |
//! |---|---|
//! | [`store`] | sends calls as plain commands or script calls, and decodes the replies |
//! | [`keys`] | the key of a counter, and its cluster slot |
//! | `one_part`, `multi_part` | the wait of a call's caller; the task that owns a call of several parts |
//! | `multi_slot`, `near_limit_hints` | calls whose counters are in several slots of a cluster |
//! | `node_scripts` | scripts that decide all checks on one cluster node, and when they are used |
//! | `plain_calls`, `plain_hints` | calls far from every limit, which need no script |
//! | [`script`] | chooses a script, encodes its arguments, decodes its reply |
//! | [`client`] | connections, topologies, circuit breakers |
//!
//! Not here: deadlines, fallback, the refusal cache (`resilience`).

pub mod client;
pub mod keys;
mod multi_part;
mod multi_slot;
mod near_limit_hints;
mod node_scripts;
mod one_part;
mod plain_calls;
mod plain_hints;
pub mod script;
pub mod store;

pub use store::RedisStore;
