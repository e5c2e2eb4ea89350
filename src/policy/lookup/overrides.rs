//! Operator overrides of rules: shadow, allow, deny, or a scaled-down limit.
//!
//! An override yields a new policy with the same rules, rule numbers and counters, so that it costs
//! requests nothing, and the original policy stays available for its end. Not here: duration,
//! authorization, activation (`app`).

use std::fmt;
use std::sync::Arc;

use super::tree::{Policy, Rule};
use crate::domain::{
    Algorithm, Charge, FixedWindow, Fraction, Hits, Limit, Micros, OnStoreFailure, Window,
};
use crate::policy::compile::spec::{LimitSpec, TiersSpec};

/// The effect of an override on a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOverride {
    /// Counted, never enforced.
    Shadow,
    /// Unlimited: not counted.
    Allow,
    /// Refuses every call and counts nothing; existing counts stay. Not possible for a rule without
    /// limits.
    Deny,
    /// Limits scaled to 1 to 100 % of the written numbers, but to at least one hit.
    Scale(u32),
}

/// Why an override cannot be set. A retry does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOverrideError {
    /// The target is neither the path of a rule nor a domain.
    Unknown(String),
    /// No rule of the target has a limit that could refuse.
    NothingToDeny(String),
    /// Not `shadow`, `allow`, `deny` or `1%` to `100%`.
    Word(String),
}

impl fmt::Display for RuleOverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleOverrideError::Unknown(target) => write!(
                f,
                "the policy has neither a domain nor a rule `{}`; give a path as /rlconfig lists it",
                target.escape_debug()
            ),
            RuleOverrideError::NothingToDeny(target) => write!(
                f,
                "`{}` is unlimited, so there is nothing that could refuse; give it a limit of 0",
                target.escape_debug()
            ),
            RuleOverrideError::Word(word) => write!(
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
    /// [`RuleOverrideError::Word`].
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
            Some(_) | None => Err(RuleOverrideError::Word(word.to_owned())),
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
    /// Checks that an override can be set on `target`, a domain or the printed path of a rule.
    ///
    /// # Errors
    ///
    /// [`RuleOverrideError::Unknown`], [`RuleOverrideError::NothingToDeny`].
    pub fn accepts(
        &self,
        target: &str,
        rule_override: RuleOverride,
    ) -> Result<(), RuleOverrideError> {
        let mut targeted = self.rules.iter().filter(|rule| self.targets(rule, target)).peekable();
        if targeted.peek().is_none() && !self.knows(target) {
            return Err(RuleOverrideError::Unknown(target.to_owned()));
        }
        if rule_override == RuleOverride::Deny && targeted.all(|rule| rule.limits.is_empty()) {
            return Err(RuleOverrideError::NothingToDeny(target.to_owned()));
        }
        Ok(())
    }

    /// Returns this policy with overrides applied in order, each to a domain or to the printed path of
    /// a rule. Unknown targets are skipped.
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
            first: self.first,
            tree: Arc::clone(&self.tree),
            secret: self.secret.clone(),
            replaced_names: self.replaced_names.clone(),
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
                self.limits = Box::default();
                self.plans = Arc::default();
            }
            RuleOverride::Deny => self.edit_limits(denied),
            RuleOverride::Scale(percent) => {
                self.edit_limits(|limit| limit.scaled_by(Fraction::percent(percent)))
            }
        }
    }

    fn edit_limits(&mut self, edit: impl Fn(&Limit) -> Limit) {
        for LimitSpec { limit, tiers, .. } in &mut self.limits {
            *limit = Arc::new(edit(limit));
            // Each class is checked against its own numbers.
            if let Some(tiers) = tiers {
                let mut changed = TiersSpec::clone(tiers);
                for class in &mut changed.classes {
                    class.limit = Arc::new(edit(&class.limit));
                }
                *tiers = Arc::new(changed);
            }
        }
    }
}

/// Returns a limit of 0 that refuses with and without the store. It is a fixed window for every
/// algorithm, because a bucket of capacity 0 would clamp the debt of its counter to 0. While it
/// applies, `charge: always` hits and refunds are lost: written, they would replace the counter's
/// state.
fn denied(limit: &Limit) -> Limit {
    let window = Window::Epoch { length: Micros::SECOND };
    Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits::ZERO, window }),
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Deny,
        ..limit.clone()
    }
}
