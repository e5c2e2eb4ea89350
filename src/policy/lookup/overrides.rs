//! Operator overrides of rules, which put a rule into shadow mode, allow or deny its requests, or
//! scale its limits down.
//!
//! Applying overrides yields a new policy with the same rules, rule ids, and counters. Overrides
//! therefore add no cost to requests. When the overrides end, the original policy is restored.
//!
//! Not here: how long overrides last, who may set them, when they take effect (`app`).

use std::fmt;
use std::sync::Arc;

use super::tree::{Policy, Rule};
use crate::domain::{
    Algorithm, Charge, FixedWindow, Fraction, Hits, Limit, Micros, OnStoreFailure, Window,
};
use crate::policy::spec::{LimitSpec, TiersSpec};

/// Effect of an operator override on a rule's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOverride {
    /// Counts calls but never rejects any.
    Shadow,
    /// Allows every call without counting.
    Allow,
    /// Rejects every call without counting; counters keep their state. Invalid for rules without
    /// limits.
    Deny,
    /// Scales limits to this percentage of their configured values, but not below one hit. The
    /// percentage is 1 to 100.
    Scale(u32),
}

/// Reason why an override cannot be set. Retrying does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOverrideError {
    /// The target is neither a rule's path nor a domain.
    UnknownTarget(String),
    /// The override is `deny`, but all rules of the target are unlimited.
    NoLimitToDeny(String),
    /// The text of the override is not `shadow`, `allow`, `deny`, or `1%` to `100%`.
    InvalidWord(String),
}

impl fmt::Display for RuleOverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleOverrideError::UnknownTarget(target) => write!(
                f,
                "the policy has neither a domain nor a rule `{}`; give a path as /rlconfig lists it",
                target.escape_debug()
            ),
            RuleOverrideError::NoLimitToDeny(target) => write!(
                f,
                "`{}` is unlimited, so there is nothing that could refuse; give it a limit of 0",
                target.escape_debug()
            ),
            RuleOverrideError::InvalidWord(word) => write!(
                f,
                "`{}` is no switch; give shadow, allow, deny, or a per cent from 1% to 100%",
                word.escape_debug()
            ),
        }
    }
}

impl std::error::Error for RuleOverrideError {}

impl RuleOverride {
    /// Parses `shadow`, `allow`, `deny`, or a percentage such as `20%`.
    ///
    /// # Errors
    ///
    /// Returns [`RuleOverrideError::InvalidWord`] if the word is none of these.
    ///
    /// ```
    /// use tidegate::policy::RuleOverride;
    /// assert_eq!(RuleOverride::read("20%"), Ok(RuleOverride::Scale(20)));
    /// assert!(RuleOverride::read("0%").is_err());
    /// ```
    pub fn read(word: &str) -> Result<RuleOverride, RuleOverrideError> {
        match word {
            "shadow" => return Ok(RuleOverride::Shadow),
            "allow" => return Ok(RuleOverride::Allow),
            "deny" => return Ok(RuleOverride::Deny),
            _ => {}
        }
        let percent = word.strip_suffix('%').and_then(|digits| digits.parse().ok());
        match percent {
            Some(percent @ 1..=100) => Ok(RuleOverride::Scale(percent)),
            Some(_) | None => Err(RuleOverrideError::InvalidWord(word.to_owned())),
        }
    }
}

impl fmt::Display for RuleOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleOverride::Shadow => f.write_str("shadow"),
            RuleOverride::Allow => f.write_str("allow"),
            RuleOverride::Deny => f.write_str("deny"),
            RuleOverride::Scale(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Policy {
    /// Checks that an override can be set on `target`, which is a domain or the path of a rule.
    ///
    /// # Errors
    ///
    /// Returns [`RuleOverrideError::UnknownTarget`] if the target is unknown, or
    /// [`RuleOverrideError::NoLimitToDeny`] for `deny` if none of the target's rules has a limit.
    pub fn check_override(
        &self,
        target: &str,
        rule_override: RuleOverride,
    ) -> Result<(), RuleOverrideError> {
        let mut targeted = self.rules.iter().filter(|rule| self.targets(rule, target)).peekable();
        if targeted.peek().is_none() && !self.has_domain(target) {
            return Err(RuleOverrideError::UnknownTarget(target.to_owned()));
        }
        if rule_override == RuleOverride::Deny && targeted.all(|rule| rule.limits.is_empty()) {
            return Err(RuleOverrideError::NoLimitToDeny(target.to_owned()));
        }
        Ok(())
    }

    /// Returns this policy with overrides applied in order. Each override targets a domain or the
    /// path of a rule. Overrides with unknown targets are skipped.
    #[must_use]
    pub fn with_overrides<'s>(
        &self,
        overrides: impl Iterator<Item = (&'s str, RuleOverride)> + Clone,
    ) -> Policy {
        let rules = self.rules.iter().map(|rule| {
            let mut rule = rule.clone();
            for (target, rule_override) in overrides.clone() {
                if self.targets(&rule, target) {
                    rule.apply_override(rule_override);
                }
            }
            rule
        });
        Policy {
            rules: rules.collect(),
            first_rule_id: self.first_rule_id,
            tree: Arc::clone(&self.tree),
            secret: self.secret.clone(),
            replaced_names: self.replaced_names.clone(),
            checks_max: self.checks_max,
            has_soft_limits: self.has_soft_limits,
        }
    }

    fn targets(&self, rule: &Rule, target: &str) -> bool {
        *rule.path == *target || self.domain_name(rule) == target
    }
}

impl Rule {
    fn apply_override(&mut self, rule_override: RuleOverride) {
        match rule_override {
            RuleOverride::Shadow => self.shadow_mode = true,
            RuleOverride::Allow => {
                self.unlimited = true;
                self.limits = Arc::default();
                self.key_templates = Arc::default();
            }
            RuleOverride::Deny => self.edit_limits(deny_all),
            RuleOverride::Scale(percent) => {
                self.edit_limits(|limit| limit.scaled_by(Fraction::from_percent(percent)))
            }
        }
    }

    fn edit_limits(&mut self, edit: impl Fn(&Limit) -> Limit) {
        let change = |limit: &mut Arc<Limit>, bill_limit: &mut Option<Arc<Limit>>| {
            *limit = Arc::new(edit(limit));
            *bill_limit = limit.bill_limit().map(Arc::new);
        };
        for LimitSpec { limit, bill_limit, tiers, .. } in Arc::make_mut(&mut self.limits) {
            change(limit, bill_limit);
            // A limit with consumer classes is enforced by the limits of its classes.
            if let Some(tiers) = tiers {
                let mut changed = TiersSpec::clone(tiers);
                for class in &mut changed.classes {
                    change(&mut class.limit, &mut class.bill_limit);
                }
                *tiers = Arc::new(changed);
            }
        }
    }
}

/// Returns a limit of 0 hits that refuses every check, even if the store is unavailable. The limit
/// is always a fixed window, because a bucket of capacity 0 would clamp its counter's debt to 0.
/// While the override is set, neither refunds nor bills (hits already used) are recorded, because
/// writing them would overwrite the counter's state.
fn deny_all(limit: &Limit) -> Limit {
    // The limit's own window, whose end the status reports: with a shorter one, a client would soon
    // retry.
    let window = match &limit.algorithm {
        Algorithm::FixedWindow(fixed) => fixed.window.clone(),
        Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => {
            Window::Epoch { length: limit.rate.window().max(Micros::SECOND) }
        }
    };
    Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits::ZERO, window }),
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Deny,
        ..limit.clone()
    }
}
