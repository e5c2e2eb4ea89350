//! The policy: from YAML text to the checks that a request must pass.
//!
//! `compile` reads policy files and finds every fault with its place: `source` (bytes) → `layout`,
//! `yaml` (bounds, values) → `reader` by the table of `language` → `descriptor`, `rule`, `body`,
//! `metadata`, `limit` (meaning) → [`spec`], then `warnings`.
//!
//! `arrange` lays a spec out as a `tree` for lookup, with `patterns` → `matcher` turns a request
//! into checks, with the keys of `key`. `switched` changes rules by hand. `explain`, `path` and `view` show it.
//!
//! Not here: reading or watching files (`app`), counting (`store`), deciding (`decide`).

mod arrange;
mod body;
mod calendar;
mod compile;
mod descriptor;
mod document;
mod excerpt;
mod explain;
mod fault;
mod key;
mod language;
mod limit;
mod matcher;
mod meetings;
mod metadata;
mod path;
mod patterns;
mod pieces;
mod reader;
mod rule;
mod scalar;
mod schema;
mod shares;
mod site;
mod source;
pub mod spec;
mod suggestions;
mod switched;
mod tiers;
mod tree;
mod values;
mod view;
mod warnings;
mod words;
mod yaml;

pub use calendar::calendar;
pub use compile::{Compiled, compile};
pub use excerpt::Excerpt;
pub use explain::{Ending, Explained, ExplainedLimit, Explanation, How, Step};
pub use fault::{Fault, FaultKind, Faults};
pub use key::{Secret, key_text};
pub use limit::{WINDOW_MAX, compile_override};
pub use matcher::{CHECKS_MAX, Checks, Found, Matches};
pub use meetings::{Joint, Meeting};
pub use path::statistic_name;
pub use schema::schema;
pub use source::{ALL_BYTES_MAX, FILE_BYTES_MAX, Options, Source};
pub use switched::{Switch, SwitchFault};
pub use tree::{Policy, Rule};
pub use view::{ClassView, LimitView, RuleView, TiersView};
