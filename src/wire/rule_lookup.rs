//! The rules that a decision's ids stand for: what encoding needs of a policy, and no more.
//!
//! Not here: which rule applies (`policy`, `decide`).

use crate::domain::RuleId;
use crate::policy::{Policy, Rule};

/// The rules that a decision's ids stand for.
pub trait Rules {
    /// The rule of that number.
    fn rule(&self, id: RuleId) -> Option<&Rule>;
}

impl Rules for Policy {
    fn rule(&self, id: RuleId) -> Option<&Rule> {
        Policy::rule(self, id)
    }
}
