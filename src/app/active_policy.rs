//! Policy in force, without overrides, and what the log and the metrics say about each new one.
//!
//! Not here: building policies (`policy_watcher`, `control_plane_policy`).

use std::sync::Arc;

use super::load_policy::Fingerprint;
use crate::clock::Clock;
use crate::domain::{RuleId, nearest_word};
use crate::policy::{Diagnostic, Policy};
use crate::telemetry::{RuleName, Telemetry};

/// Maximum number of diagnostics logged per load. One more line reports how many were omitted. A
/// single mistake can cause a thousand diagnostics, which would bury all other log lines.
pub(super) const LOGGED_DIAGNOSTICS_MAX: usize = 20;

/// Policy in force, without overrides.
pub(super) struct ActivePolicy {
    pub(super) telemetry: Arc<Telemetry>,
    /// `None` until the first policy is there.
    pub(super) policy: Option<Arc<Policy>>,
    /// Fingerprint of `policy`.
    pub(super) fingerprint: Option<Fingerprint>,
    /// Id of the next policy's first rule.
    pub(super) next_rule: RuleId,
}

impl ActivePolicy {
    pub(super) fn new(telemetry: Arc<Telemetry>) -> ActivePolicy {
        ActivePolicy { telemetry, policy: None, fingerprint: None, next_rule: RuleId(0) }
    }

    /// Records a policy whose first rule has the id `next_rule`, and returns the former one. Call
    /// this before the policy decides its first call.
    pub(super) fn replace(
        &mut self,
        policy: &Arc<Policy>,
        fingerprint: Fingerprint,
    ) -> Option<Arc<Policy>> {
        let names = policy.rules().iter().map(|rule| RuleName {
            domain: policy.domain_name(rule).into(),
            path: Arc::clone(&rule.path),
        });
        self.telemetry.record_policy_load(self.next_rule, names, fingerprint, Clock::System.now());
        // A policy of 64 MiB has far fewer than u32::MAX rules, so even after wrapping, the numbers
        // of two consecutive policies never overlap.
        let rules = u32::try_from(policy.rules().len()).unwrap_or(u32::MAX);
        self.next_rule = RuleId(self.next_rule.0.wrapping_add(rules));
        self.fingerprint = Some(fingerprint);
        self.policy.replace(Arc::clone(policy))
    }

    /// Logs a reload, with what has changed, and warns of domains that the new policy drops although
    /// they have traffic. Call this before [`replace`](Self::replace), after which `telemetry` has
    /// forgotten the counters of these domains.
    pub(super) fn log_reload(
        &self,
        policy: &Policy,
        files: Option<usize>,
        fingerprint: Fingerprint,
    ) {
        let (rules, former) = (policy.rules().len(), self.policy.as_deref());
        let changes = former.map(|former| policy.describe_changes(former));
        tracing::info!(files, rules, %fingerprint, changes, "policy reloaded");
        if let Some(former) = former {
            self.warn_of_dropped_domains(former, policy);
        }
    }

    fn warn_of_dropped_domains(&self, former: &Policy, policy: &Policy) {
        let dropped: Vec<&str> =
            former.domain_names().filter(|domain| !policy.has_domain(domain)).collect();
        if dropped.is_empty() {
            return;
        }
        let added: Vec<&str> =
            policy.domain_names().filter(|domain| !former.has_domain(domain)).collect();
        let counts = self.telemetry.snapshot().rules;
        let with_traffic = dropped.iter().filter_map(|domain| {
            let rules = counts.iter().filter(|(name, _)| *name.domain == **domain);
            let calls: u64 = rules.map(|(_, counts)| counts.checks).sum();
            (calls > 0).then_some((domain, calls))
        });
        for (domain, calls) in with_traffic.take(LOGGED_DIAGNOSTICS_MAX) {
            let renamed = match (dropped.as_slice(), added.as_slice()) {
                ([_], [only]) => Some(*only),
                _ => nearest_word(domain, added.iter().copied()),
            };
            let advice = match renamed {
                Some(new) => format!(
                    "was it renamed to {new}? set the domain {new} in the caller (with Envoy, `domain` of its rate limit filter)"
                ),
                None => "restore the domain, or change the domain in the caller".to_owned(),
            };
            tracing::warn!(
                domain,
                calls,
                advice,
                "the new policy drops a domain that has traffic: its calls have no limit"
            );
        }
    }
}

pub(super) fn log_warnings(warnings: &[Diagnostic]) {
    for warning in warnings.iter().take(LOGGED_DIAGNOSTICS_MAX) {
        tracing::warn!(warning = %warning, "policy warning");
    }
    if warnings.len() > LOGGED_DIAGNOSTICS_MAX {
        let more = warnings.len() - LOGGED_DIAGNOSTICS_MAX;
        tracing::warn!(more, "more policy warnings, run `tidegate check` to see all");
    }
}
