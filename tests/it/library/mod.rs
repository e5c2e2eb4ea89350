//! The library: `tidegate::Limiter` in memory and over Redis, its public items, and a crate that
//! depends on it.

mod in_memory;
mod new_crate;
mod over_redis;
mod public_items;
