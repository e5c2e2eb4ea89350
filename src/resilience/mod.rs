//! What stands between a decision and its store: each part wraps a store and is a store.
//!
//! Not here: Redis words, arithmetic.

pub mod remember;
