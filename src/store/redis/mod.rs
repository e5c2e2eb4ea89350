//! The shared store: counters in Redis, decided by Lua.
//! (being built)

pub mod script;
pub mod transport;

mod backoff;
mod cluster;
pub mod config;
pub mod connections;
pub mod counters;
mod dial;
mod fault;
mod lane;
mod master;
mod node;
mod refresh;
mod sentinel;
mod slots;
mod ticket;
