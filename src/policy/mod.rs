//! Policies: parses rate limit rules from YAML, and turns requests into the checks they must pass.
//!
//! | directory | contents |
//! |---|---|
//! | `syntax` | YAML with source positions, resources of a control plane, the keyword table |
//! | `compile` | parsed YAML to [`compiled_policy`]: descriptors, limits, tiers, calendars, warnings |
//! | `lookup` | [`compiled_policy`] to the tree that requests are matched against, counter keys |
//! | `show` | explanations of a match, and listings of the active policy |
//!
//! Not here: reading and watching files (`app`), counting (`store`), decisions (`decide`).

mod compile;
pub mod compiled_policy;
mod diagnostic;
mod excerpt;
mod lookup;
mod override_entry;
#[cfg(feature = "server")]
mod override_json;
mod read_budget;
mod show;
mod source;
mod syntax;
mod time_zone;
mod words;

pub use compile::policy_defaults::PolicyDefaults;
pub use compile::{CompiledPolicy, compile, compile_resources};
pub use compiled_policy::WINDOW_MAX;
pub use diagnostic::{Diagnostic, DiagnosticKind, Diagnostics};
pub use excerpt::Excerpt;
pub use lookup::counter_key::{Secret, key_text};
pub use lookup::matcher::{CHECKS_MAX, Checks, DescriptorMatch, Matches};
pub use lookup::operator_overrides::Fit;
pub use lookup::override_index::{PATTERN_COMBINATIONS_MAX, PATTERN_TARGETS_MAX};
pub use lookup::request_override::compile_override;
pub use lookup::tree::{Policy, Rule};
pub use override_entry::{OverrideChange, OverrideEntry, OverrideMode, OverrideTarget};
#[cfg(feature = "server")]
pub use override_json::{BY_BYTES_MAX, OVERRIDE_BYTES_MAX, REASON_BYTES_MAX};
pub use read_budget::{NODES_MAX, READ_BYTES_MAX, ReadBudget};
pub use show::explain::{ExplainedStep, Explanation, LimitExplanation, MatchEnd, RuleExplanation};
#[cfg(feature = "server")]
pub use show::view::{ClassView, LimitView, RuleView, TiersView};
pub use source::{FILE_BYTES_CEILING, FILE_BYTES_MAX, Options, Source, TOTAL_BYTES_MAX};
pub use syntax::json_schema::schema;
pub use syntax::resource::{DomainDefaults, Resource, ResourceWriter};
pub use syntax::yaml::tree::DEPTH_MAX as NESTING_MAX;
pub use time_zone::{anchored_calendar, calendar, parse_anchor};
