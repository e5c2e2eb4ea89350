//! The policy in use as plain data, for `/policy`: every rule with its place, its limits and classes.
//!
//! Field names follow the policy language. `/policy` prints them, so that a change here changes the
//! interface. Not for the request path.

use std::sync::Arc;

use serde::Serialize;

use crate::domain::{Algorithm, Charge, Limit, OnStoreFailure, Window};
use crate::policy::compile::spec::{LimitSpec, TiersSpec};
use crate::policy::lookup::tree::{Plan, Policy, Rule};

/// A rule of the policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleView<'p> {
    /// Path, as in metrics.
    pub rule: &'p str,
    /// Domain.
    pub domain: &'p str,
    /// File of its descriptor.
    pub file: Option<&'p str>,
    /// Line in the file, from 1.
    pub line: Option<u32>,
    /// Unlimited: no counter.
    pub unlimited: bool,
    /// Shadow mode: counted, never enforced.
    pub shadow_mode: bool,
    /// Quota mode: refuses only if all quota descriptors of a request are over their limits.
    pub quota_mode: bool,
    /// Names of limits that the rule replaces.
    pub replaces: Vec<String>,
    /// Limits in file order.
    pub limits: Vec<LimitView<'p>>,
}

/// A limit of a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitView<'p> {
    /// Name, if it has one.
    pub name: Option<&'p str>,
    /// Hits per unit as written; for `concurrency`, the number of slots.
    pub requests_per_unit: u32,
    /// `second` to `year`; absent for `concurrency`.
    pub unit: Option<&'static str>,
    /// Length of the window in units.
    pub unit_multiplier: u32,
    /// Algorithm, as in the policy language.
    pub algorithm: &'static str,
    /// Capacity in hits, with overrides applied.
    pub capacity: u64,
    /// Time zone of calendar windows.
    pub time_zone: Option<&'p str>,
    /// Lease of a concurrency slot, in seconds.
    pub lease: Option<u64>,
    /// Multiplier of the hits of a call.
    pub cost: u64,
    /// `admitted` or `always`.
    pub charge: &'static str,
    /// `local`, `allow`, `deny` or `error`.
    pub on_store_failure: &'static str,
    /// Keys of the entries that make the counter; empty: one counter for all.
    pub counter_of: Vec<&'p str>,
    /// Consumer classes, if any.
    pub tiers: Option<TiersView<'p>>,
}

/// Consumer classes of a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TiersView<'p> {
    /// `shared`, `separate` or `hybrid`.
    pub method: &'static str,
    /// Class of other values; absent: they are not limited.
    pub default: Option<&'p str>,
    /// Classes, highest priority first.
    pub classes: Vec<ClassView<'p>>,
}

/// A consumer class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassView<'p> {
    /// Name of the class, which is the value of the entry.
    pub name: &'p str,
    /// Capacity in hits.
    pub capacity: u64,
}

impl Policy {
    /// Returns a rule of this policy as plain data.
    pub fn view<'p>(&'p self, rule: &'p Rule) -> RuleView<'p> {
        let limit = |(spec, plan): (&'p LimitSpec, &'p Plan)| self.limit_view(rule, spec, plan);
        RuleView {
            rule: &rule.path,
            domain: self.domain_name(rule),
            file: rule.location.as_ref().map(|at| &*at.file),
            line: rule.location.as_ref().map(|at| at.line),
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
            unit: limit.rate.unit.map(|unit| unit.as_str()),
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
        method: spec.method.as_str(),
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
