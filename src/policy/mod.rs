//! The policy: from YAML text to the checks that a request must pass.
//!
//! `compile` reads policy files and finds every fault with its place: `source` (bytes) → `layout`,
//! `yaml` (bounds, values) → `reader` by the table of `language` → `descriptor`, `rule`, `body`,
//! `metadata`, `limit` (meaning) → [`spec`], then `warnings`. `tree` arranges it for lookup →
//! `matcher` turns a request into checks, with the keys of `key`.
//!
//! Not here: reading or watching files (`app`), counting (`store`), deciding (`decide`).

mod body;
mod compile;
mod descriptor;
mod document;
mod fault;
mod key;
mod language;
mod layout;
mod limit;
mod matcher;
mod metadata;
mod places;
mod reader;
mod rule;
mod scalar;
mod schema;
mod source;
pub mod spec;
mod tree;
mod warnings;
mod yaml;

pub use compile::{Compiled, compile};
pub use fault::{Fault, FaultKind, Faults};
pub use key::Secret;
pub use limit::{WINDOW_MAX, compile_override};
pub use matcher::{Checks, Found, Matches};
pub use schema::schema;
pub use source::{ALL_BYTES_MAX, FILE_BYTES_MAX, Options, Source};
pub use tree::{Policy, Rule};
