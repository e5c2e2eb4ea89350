//! The policy as it is in force, as plain data for listings: every rule with where it is written,
//! its limits with their numbers and classes.
//!
//! The names of the fields are the words of the policy language where it has one; they are what
//! `/policy` prints, so a change of them is a change of the interface. Not here: anything on a
//! request's way; who prints it.

use std::sync::Arc;

use serde::Serialize;

use crate::domain::{Algorithm, Charge, Limit, OnStoreFailure, Window};
use crate::policy::compile::spec::{LimitSpec, TiersSpec};
use crate::policy::lookup::tree::{Plan, Policy, Rule};

/// A rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleView<'p> {
    /// Its path, as metrics name it.
    pub rule: &'p str,
    /// The domain that it stands in.
    pub domain: &'p str,
    /// The file that its descriptor is written in.
    pub file: Option<&'p str>,
    /// The line of the file, from 1.
    pub line: Option<u32>,
    /// It has no counter at all.
    pub unlimited: bool,
    /// It is counted and lets pass.
    pub shadow_mode: bool,
    /// It has a say only together with the other quota descriptors of a request.
    pub quota_mode: bool,
    /// Names of limits that it takes out of a request.
    pub replaces: Vec<String>,
    /// Its limits, in file order.
    pub limits: Vec<LimitView<'p>>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitView<'p> {
    /// Its own name.
    pub name: Option<&'p str>,
    /// The rate as written; for concurrency the number of slots.
    pub requests_per_unit: u32,
    /// `second` to `year`; none for concurrency.
    pub unit: Option<&'static str>,
    /// The window is that many units.
    pub unit_multiplier: u32,
    /// How it counts, in the policy's word.
    pub algorithm: &'static str,
    /// The most hits that can be taken at once, as it is in force.
    pub capacity: u64,
    /// The time zone of calendar windows.
    pub time_zone: Option<&'p str>,
    /// After how many seconds a slot that is not returned frees itself.
    pub lease: Option<u64>,
    /// Hits that one hit of a caller counts for.
    pub cost: u64,
    /// `admitted` or `always`.
    pub charge: &'static str,
    /// `local`, `allow`, `deny` or `error`.
    pub on_store_failure: &'static str,
    /// The entries whose values make a counter each; none: one counter for all.
    pub counter_of: Vec<&'p str>,
    /// The consumer classes that divide it.
    pub tiers: Option<TiersView<'p>>,
}

/// Consumer classes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TiersView<'p> {
    /// `shared`, `separate` or `hybrid`.
    pub method: &'static str,
    /// The class of a value that is in none; none: such are not limited.
    pub default: Option<&'p str>,
    /// The classes, the highest priority first.
    pub classes: Vec<ClassView<'p>>,
}

/// A consumer class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassView<'p> {
    /// The value that names it.
    pub name: &'p str,
    /// The most hits that it can take at once.
    pub capacity: u64,
}

impl Policy {
    /// A rule of this policy, as listings show it.
    pub fn view<'p>(&'p self, rule: &'p Rule) -> RuleView<'p> {
        let limit = |(spec, plan): (&'p LimitSpec, &'p Plan)| self.limit_view(rule, spec, plan);
        RuleView {
            rule: &rule.path,
            domain: self.domain_name(rule),
            file: rule.written.as_ref().map(|at| &*at.file),
            line: rule.written.as_ref().map(|at| at.line),
            unlimited: rule.limits.is_empty(),
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
            replaces: rule.replaces.iter().filter_map(|name| self.replaced_name(*name)).collect(),
            limits: rule.limits.iter().zip(rule.plans.iter()).map(limit).collect(),
        }
    }

    fn limit_view<'p>(&'p self, rule: &Rule, spec: &'p LimitSpec, plan: &'p Plan) -> LimitView<'p> {
        let limit: &Arc<Limit> = &spec.limit;
        let path = self.tree.path_to(rule.node);
        let keys = plan.parts.iter().filter_map(|part| path.get(part.at).map(|node| &*node.key));
        LimitView {
            name: spec.name.as_deref(),
            requests_per_unit: limit.rate.requests_per_unit,
            unit: limit.rate.unit.map(|unit| unit.word()),
            unit_multiplier: limit.rate.unit_multiplier,
            algorithm: algorithm(&limit.algorithm),
            capacity: limit.capacity().0,
            time_zone: zone(&limit.algorithm),
            lease: match &limit.algorithm {
                Algorithm::Concurrency(slots) => Some(slots.lease.ceil_secs()),
                _ => None,
            },
            cost: spec.cost,
            charge: match limit.charge {
                Charge::Admitted => "admitted",
                Charge::Always => "always",
            },
            on_store_failure: match limit.on_store_failure {
                OnStoreFailure::Local => "local",
                OnStoreFailure::Allow => "allow",
                OnStoreFailure::Deny => "deny",
                OnStoreFailure::Error => "error",
            },
            counter_of: keys.collect(),
            tiers: spec.tiers.as_deref().map(tiers),
        }
    }
}

fn tiers(spec: &TiersSpec) -> TiersView<'_> {
    let classes = spec.classes.iter();
    TiersView {
        method: spec.method.word(),
        default: spec.default.and_then(|at| spec.classes.get(at)).map(|class| &*class.name),
        classes: classes
            .map(|class| ClassView { name: &class.name, capacity: class.limit.capacity().0 })
            .collect(),
    }
}

fn algorithm(algorithm: &Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow(_) => "fixed_window",
        Algorithm::SlidingWindow(_) => "sliding_window",
        Algorithm::SlidingLog(_) => "sliding_log",
        Algorithm::Bucket(bucket) if bucket.leaky => "leaky_bucket",
        Algorithm::Bucket(_) | Algorithm::Hybrid(_) => "token_bucket",
        Algorithm::Concurrency(_) => "concurrency",
    }
}

fn zone(algorithm: &Algorithm) -> Option<&str> {
    match algorithm {
        Algorithm::FixedWindow(fixed) => match &fixed.window {
            Window::Calendar(calendar) => Some(calendar.zone()),
            Window::Epoch { .. } => None,
        },
        _ => None,
    }
}
