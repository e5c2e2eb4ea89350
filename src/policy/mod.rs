//! The policy: from YAML text to the checks that a request must pass.
//!
//! `raw` reads the YAML's shape → `compile` gives it meaning and finds every fault with its place →
//! `tree` arranges it for lookup → `matcher` turns a request into checks, with the keys of `key`.
//!
//! Not here: reading or watching files (`app`), counting (`store`), deciding (`decide`).

mod key;
mod matcher;
pub mod spec;
mod tree;

pub use key::Secret;
pub use matcher::{Checks, Found, Matches};
pub use tree::{Policy, Rule};
