//! JSON view of the active policy for `/policy`: rules, limits, and consumer classes.
//!
//! Field names follow the policy language. They are part of the interface, because `/policy` prints
//! them. Not used on the request path.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::Serialize;

use super::listing::{algorithm_name, calendar_of, format_soft_limit};
use crate::domain::{Algorithm, Calendar, Limit, Reserve};
use crate::policy::compiled_policy::{LimitSpec, TiersSpec};
use crate::policy::lookup::tree::{KeyTemplate, Policy, Rule};
use crate::policy::words::Prepay;

/// Rule in the JSON view of the policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleView<'p> {
    /// Path of the rule as configured, without values from requests.
    pub rule: &'p str,
    /// Domain of the rule.
    pub domain: &'p str,
    /// Name of the policy file or control-plane resource that contains the rule; absent if the rule
    /// comes from neither.
    pub file: Option<&'p str>,
    /// Line of the rule's descriptor in its policy file, from 1; absent if the rule does not come
    /// from a policy file.
    pub line: Option<u32>,
    /// Path of the rule's descriptor in its control-plane resource; absent if the rule does not
    /// come from a control plane.
    pub path: Option<&'p str>,
    /// Whether the rule allows every request without counting.
    pub unlimited: bool,
    /// Shadow mode: requests over the limit are counted but admitted.
    pub shadow_mode: bool,
    /// Quota mode: a request is rejected only if all of its quota groups are over a limit.
    pub quota_mode: bool,
    /// Names of limits that are skipped for the whole request if this rule matches.
    pub replaces: &'p [Box<str>],
    /// Limits of the rule, in file order.
    pub limits: Vec<LimitView<'p>>,
}

/// Limit in the JSON view of the policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitView<'p> {
    /// Name of the limit; absent if unnamed.
    pub name: Option<&'p str>,
    /// Hits per window as configured; for `concurrency`, the number of slots.
    pub requests_per_unit: u32,
    /// Unit of the window, `second` to `year`; absent for `concurrency`.
    pub unit: Option<&'static str>,
    /// Length of the window, as a multiple of `unit`.
    pub unit_multiplier: u32,
    /// Algorithm, as spelled in policy files.
    pub algorithm: &'static str,
    /// Capacity in hits, with operator overrides applied.
    pub capacity: u64,
    /// IANA time zone of calendar windows; absent for other limits.
    pub time_zone: Option<&'p str>,
    /// Date on which calendar months or years start, such as `15` or `04-01`; absent if it is the
    /// first day, and for other limits.
    pub anchor: Option<String>,
    /// Lease of a concurrency slot in seconds, rounded up; absent for other algorithms.
    pub lease: Option<u64>,
    /// Seconds for which a rejection blocks the key; absent without `block`.
    pub block: Option<u32>,
    /// Number of hits charged for each hit of the request.
    pub cost: u64,
    /// Charge mode of the limit: `admitted`, `billed`, or `always`.
    pub charge: &'static str,
    /// Whether replicas may take hits of a hot counter in advance: `auto` or `off`.
    pub prepay: &'static str,
    /// Seconds after which a hold that was not settled ends; absent if calls cannot hold hits.
    pub reserve_ttl: Option<u32>,
    /// Action taken if the store is unavailable: `local`, `allow`, `deny`, or `error`.
    pub on_store_failure: &'static str,
    /// Keys of the entries that the counter key contains. If empty, all requests share one counter.
    pub counter_of: Vec<&'p str>,
    /// `mark` and `log_near` as text; absent for a limit without both.
    pub mark: Option<String>,
    /// Consumer classes; absent for a limit without `tiers`.
    pub tiers: Option<TiersView<'p>>,
}

/// Consumer classes of a limit in the JSON view of the policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TiersView<'p> {
    /// Method by which classes divide the bucket: `shared`, `separate`, or `hybrid`.
    pub method: &'static str,
    /// Name of the class for values that name no class; absent if such values are not limited.
    pub default: Option<&'p str>,
    /// Consumer classes, highest priority first.
    pub classes: Vec<ClassView<'p>>,
}

/// Consumer class in the JSON view of the policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassView<'p> {
    /// Class name, which is a value of the path's last entry.
    pub name: &'p str,
    /// Capacity of the class's limit, in hits.
    pub capacity: u64,
}

impl Policy {
    /// Returns the JSON view of a rule of this policy.
    pub fn view<'p>(&'p self, rule: &'p Rule) -> RuleView<'p> {
        let limit = |(spec, template): (&'p LimitSpec, &'p KeyTemplate)| {
            self.limit_view(rule, spec, template)
        };
        RuleView {
            rule: &rule.path,
            domain: self.domain_name(rule),
            file: rule.location.as_ref().map(|at| &*at.file),
            line: rule.location.as_ref().map(|at| at.line).filter(|line| *line > 0),
            path: rule.location.as_ref().and_then(|at| at.path.as_deref()),
            unlimited: rule.limits.is_empty(),
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
            replaces: &rule.replaces,
            limits: rule.limits.iter().zip(rule.key_templates.iter()).map(limit).collect(),
        }
    }

    fn limit_view<'p>(
        &'p self,
        rule: &Rule,
        spec: &'p LimitSpec,
        template: &'p KeyTemplate,
    ) -> LimitView<'p> {
        let limit: &Arc<Limit> = &spec.limit;
        let calendar = calendar_of(&limit.algorithm);
        let path = self.tree.path_to(rule.node);
        let keys = template
            .entries
            .iter()
            .filter_map(|part| path.get(part.position).map(|node| &*node.key));
        LimitView {
            name: spec.name.as_deref(),
            requests_per_unit: limit.rate.requests_per_unit,
            unit: limit.rate.unit.map(|unit| unit.as_str()),
            unit_multiplier: limit.rate.unit_multiplier,
            algorithm: algorithm_name(&limit.algorithm),
            capacity: limit.capacity().0,
            time_zone: calendar.map(Calendar::time_zone),
            anchor: calendar.and_then(Calendar::anchor),
            lease: match &limit.algorithm {
                Algorithm::Concurrency(slots) => Some(slots.lease.ceil_secs()),
                _ => None,
            },
            block: limit.block_seconds.map(NonZeroU32::get),
            cost: spec.cost,
            charge: limit.charge.as_str(),
            prepay: if limit.prepay { Prepay::Auto } else { Prepay::Off }.as_str(),
            reserve_ttl: limit.reserve.map(Reserve::ttl_secs),
            on_store_failure: limit.on_store_failure.as_str(),
            counter_of: keys.collect(),
            mark: spec.soft.as_deref().map(format_soft_limit),
            tiers: spec.tiers.as_deref().map(tiers_view),
        }
    }
}

fn tiers_view(spec: &TiersSpec) -> TiersView<'_> {
    let classes = spec.classes.iter();
    TiersView {
        method: spec.method.as_str(),
        default: spec.default.and_then(|at| spec.classes.get(at)).map(|class| &*class.name),
        classes: classes
            .map(|class| ClassView { name: &class.name, capacity: class.limit.capacity().0 })
            .collect(),
    }
}
