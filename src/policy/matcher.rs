//! Turns a request into the checks it must pass.
//!
//! Not here: YAML, counting, I/O, the combination of outcomes.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::tree::{Policy, Rule};
use crate::domain::{Accounting, Check, Limit, Request};

/// What was found for one descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Found<'p> {
    /// No rule.
    Nothing,
    /// A rule whose limits another descriptor's rule takes out of this request, all of them.
    Replaced(&'p Rule),
    /// A rule without limits: unlimited.
    Unlimited(&'p Rule),
    /// A rule with limits.
    Limited(&'p Rule),
    /// The limit that the caller brought along: a position in `Matches::overrides`.
    Override(usize),
}

/// What was found for a request: one entry per descriptor.
#[derive(Debug)]
pub struct Matches<'p> {
    /// The policy has the domain.
    pub domain_known: bool,
    /// The domain's accounting.
    pub accounting: Accounting,
    /// In the order of the descriptors.
    pub found: SmallVec<[Found<'p>; 4]>,
    /// Limits that the caller brought along, compiled.
    pub overrides: Vec<Arc<Limit>>,
}

/// The checks of a request. A check's role is its rule's; `decide` knows the modes of the whole
/// process and corrects it.
#[derive(Debug)]
pub struct Checks<'m, 'p> {
    /// All checks, in the order of the descriptors and then of the file.
    pub each: SmallVec<[Check<'m>; 4]>,
    /// For each descriptor its part of `each`.
    pub spans: SmallVec<[Range<usize>; 4]>,
    /// For each check its limit's own name; empty where it has none.
    pub names: SmallVec<[&'p str; 4]>,
}

impl Policy {
    /// Finds the rule of every descriptor. Allocates nothing for a request that matches nothing.
    pub fn find<'p>(&'p self, _request: &Request<'_>) -> Matches<'p> {
        unimplemented!()
    }

    /// The checks that a request must pass.
    pub fn checks<'m, 'p: 'm>(
        &'p self,
        _request: &Request<'_>,
        _matches: &'m Matches<'p>,
    ) -> Checks<'m, 'p> {
        unimplemented!()
    }
}
