//! The policy: from YAML text to the checks that a request must pass.
//!
//! `raw` reads the YAML's shape → `compile` gives it meaning and finds every fault with its place →
//! `arrange` lays it out as a `tree` for lookup, with `patterns` → `matcher` turns a request into
//! checks, with the keys of `key` and the limits that callers have `brought`. `explain` and `path`
//! put it in words.
//!
//! Not here: reading or watching files (`app`), counting (`store`), deciding (`decide`).

mod arrange;
mod brought;
mod explain;
mod key;
mod matcher;
mod path;
mod patterns;
pub mod spec;
mod tree;

pub use explain::{Ending, Explained, ExplainedLimit, Explanation, How, Step};
pub use key::{Secret, key_text};
pub use matcher::{CHECKS_MAX, Checks, Found, Matches};
pub use path::statistic_name;
pub use tree::{Policy, Rule};
