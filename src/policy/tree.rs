//! The compiled policy, arranged for lookup.

use std::sync::Arc;

use super::key::Secret;
use super::spec::{Body, DomainSpec, LimitSpec};
use crate::domain::RuleId;

/// A policy, ready to be matched against. Immutable: a reload makes another one.
#[derive(Debug)]
pub struct Policy {
    rules: Vec<Rule>,
}

/// What applies to a descriptor that ends at a node.
#[derive(Debug)]
pub struct Rule {
    /// Its number in the policy.
    pub id: RuleId,
    /// Its printed path: `domain.key_value.key` as envoyproxy/ratelimit prints it.
    pub path: Box<str>,
    /// No counter at all.
    pub unlimited: bool,
    /// The limits, in file order.
    pub limits: Box<[LimitSpec]>,
    /// Answered as OK when over.
    pub shadow_mode: bool,
    /// Has a say only together with the other quota descriptors.
    pub quota_mode: bool,
    /// Returned in dynamic metadata when the descriptor passes.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The body of refusals: the rule's, else its domain's.
    pub body: Option<Arc<Body>>,
}

impl Policy {
    /// Arranges the domains for lookup.
    pub fn build(_domains: Vec<DomainSpec>, _secret: Secret) -> Policy {
        unimplemented!()
    }

    /// All rules, by id.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// One rule.
    pub fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(id.0 as usize)
    }
}
