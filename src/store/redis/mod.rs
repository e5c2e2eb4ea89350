//! The shared store: counters in Redis, decided by Lua.
//! (being built)

pub mod script;
pub mod transport;
