//! Policies: parses rate limit rules from YAML, and turns requests into the checks they must pass.
//!
//! | directory | contents |
//! |---|---|
//! | `source` | policy files as bytes, and their size limits; resources of a control plane |
//! | `syntax` | YAML with source positions, the keyword table, the JSON Schema, diagnostics |
//! | `compile` | parsed YAML to [`spec`]: descriptors, limits, tiers, calendars, warnings |
//! | `lookup` | [`spec`] to the tree that requests are matched against, counter keys |
//! | `show` | explanations of a match, and listings of the active policy |
//!
//! Not here: reading and watching files (`app`), counting (`store`), decisions (`decide`).

mod compile;
mod lookup;
mod show;
mod source;
mod syntax;

pub use compile::limit_numbers::{WINDOW_MAX, compile_override};
pub use compile::spec;
pub use compile::time_zone::calendar;
pub use compile::{CompiledPolicy, compile, compile_resources};
pub use lookup::counter_key::{Secret, key_text};
pub use lookup::matcher::{CHECKS_MAX, Checks, DescriptorMatch, Matches};
pub use lookup::overrides::{RuleOverride, RuleOverrideError};
pub use lookup::tree::{Policy, Rule};
pub use show::explain::{
    ExplainedStep, Explanation, LimitExplanation, MatchEnd, RuleExplanation, StepResult,
};
#[cfg(feature = "server")]
pub use show::view::{ClassView, LimitView, RuleView, TiersView};
pub use source::domain_defaults::{DomainDefaults, PolicyDefaults};
pub use source::read_budget::{NODES_MAX, READ_BYTES_MAX, ReadBudget};
pub use source::resource::{DescriptorFields, LimitFields, Resource, ResourceWriter};
pub use source::{FILE_BYTES_CEILING, FILE_BYTES_MAX, Options, Source, TOTAL_BYTES_MAX};
pub use syntax::diagnostic::{Diagnostic, DiagnosticKind, Diagnostics};
pub use syntax::excerpt::Excerpt;
pub use syntax::json_schema::schema;
pub use syntax::yaml::DEPTH_MAX as NESTING_MAX;
