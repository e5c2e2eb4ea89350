//! A policy with some of its rules switched by hand: to shadow, allow, deny, or scaled down.
//!
//! The result is a policy like any other, so that a switch costs a request nothing. It has the same
//! rules with the same numbers and the same counters, and the policy that it was made from is still
//! there to go back to. Not here: for how long, who may, putting it in force (`app`).

use std::fmt;
use std::sync::Arc;

use super::tree::{Policy, Rule};
use crate::domain::{
    Algorithm, Charge, FixedWindow, Fraction, Hits, Limit, Micros, OnStoreFailure, Window,
};
use crate::policy::compile::spec::{LimitSpec, TiersSpec};

/// What a switch makes of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOverride {
    /// It is counted and has no say.
    Shadow,
    /// It is not even asked: unlimited.
    Allow,
    /// It refuses everything and counts nothing; what is counted stays. A rule without limits
    /// cannot refuse.
    Deny,
    /// Its limits are so many per cent of what is written, 1 to 100; at least one hit.
    Scale(u32),
}

/// Why a switch cannot be set. Trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOverrideError {
    /// Neither a rule's path nor a domain.
    Unknown(String),
    /// None of the rules has a limit that could refuse.
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
    /// Reads `shadow`, `allow`, `deny`, `20%`.
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
    /// Whether a switch can be set: on a domain's name, or on a rule's printed path.
    ///
    /// # Errors
    ///
    /// [`RuleOverrideError::Unknown`], [`RuleOverrideError::NothingToDeny`].
    pub fn accepts(&self, target: &str, switch: RuleOverride) -> Result<(), RuleOverrideError> {
        let mut meant = self.rules.iter().filter(|rule| self.is_meant(rule, target)).peekable();
        if meant.peek().is_none() && !self.knows(target) {
            return Err(RuleOverrideError::Unknown(target.to_owned()));
        }
        if switch == RuleOverride::Deny && meant.all(|rule| rule.limits.is_empty()) {
            return Err(RuleOverrideError::NothingToDeny(target.to_owned()));
        }
        Ok(())
    }

    /// This policy with these switches set, each on a domain's name or a rule's printed path. Later
    /// ones act on what earlier ones left; a target that there is not is passed over.
    #[must_use]
    pub fn switched<'s>(
        &self,
        switches: impl Iterator<Item = (&'s str, RuleOverride)> + Clone,
    ) -> Policy {
        let rules = self.rules.iter().map(|rule| {
            let mut rule = rule.clone();
            for (target, switch) in switches.clone() {
                if self.is_meant(&rule, target) {
                    rule.switch(switch);
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

    fn is_meant(&self, rule: &Rule, target: &str) -> bool {
        *rule.path == *target || self.domain_name(rule) == target
    }
}

impl Rule {
    fn switch(&mut self, switch: RuleOverride) {
        match switch {
            RuleOverride::Shadow => self.shadow_mode = true,
            RuleOverride::Allow => {
                self.unlimited = true;
                self.limits = Box::default();
                self.plans = Arc::default();
            }
            RuleOverride::Deny => self.each_limit(denied),
            RuleOverride::Scale(percent) => {
                self.each_limit(|limit| limit.fraction(Fraction::percent(percent)))
            }
        }
    }

    fn each_limit(&mut self, change: impl Fn(&Limit) -> Limit) {
        for LimitSpec { limit, tiers, .. } in &mut self.limits {
            *limit = Arc::new(change(limit));
            // A class is checked against its own numbers, not against the whole that they divide.
            if let Some(tiers) = tiers {
                let mut changed = TiersSpec::clone(tiers);
                for class in &mut changed.classes {
                    class.limit = Arc::new(change(&class.limit));
                }
                *tiers = Arc::new(changed);
            }
        }
    }
}

/// A limit of nothing, whether the store answers or not. It counts in windows whatever the limit
/// counted in: a bucket of no capacity would cut its counter's debt down to none. Hits that are
/// charged always, and those that callers return, are lost meanwhile: written, they would take the
/// place of what is counted.
fn denied(limit: &Limit) -> Limit {
    let window = Window::Epoch { length: Micros::SECOND };
    Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits::ZERO, window }),
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Deny,
        ..limit.clone()
    }
}
