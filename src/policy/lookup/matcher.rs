//! Turns a request into the checks it must pass.
//!
//! Not here: YAML, how the tree is laid out (`tree`), algorithm, I/O, the combination of outcomes.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::counter_key;
use super::counter_key::{Held, Identity};
use super::tree::{Domain, NameId, NodeId, Part, Plan, Policy, Rule};
use crate::domain::{
    Accounting, Algorithm, Check, Descriptor, Entry, Hits, Holder, Key, Limit, Op, Request, Role,
    RuleId,
};
use crate::policy::compile::limit_numbers::compile_override;
use crate::policy::compile::spec::LimitSpec;

/// The most checks of one call: what one script of a store decides at once. Policies that could
/// need more are refused at load; were there more, those beyond would be left out.
pub const CHECKS_MAX: usize = 128;

/// So many descriptors are matched without the heap. Envoy sends one per rate limit action of a
/// route, two or three as a rule.
const DESCRIPTORS_INLINE: usize = 16;

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
    /// The domain's accounting.
    pub accounting: Accounting,
    /// In the order of the descriptors.
    pub found: SmallVec<[Found<'p>; DESCRIPTORS_INLINE]>,
    /// Limits that the caller brought along, compiled.
    pub overrides: Vec<Arc<Limit>>,
    domain: Option<&'p Domain>,
    replaced: SmallVec<[Replaced; 4]>,
}

impl Matches<'_> {
    /// Whether the policy has the domain that the request names.
    pub fn domain_known(&self) -> bool {
        self.domain.is_some()
    }
}

/// A rule that matched takes the limits of a name out of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Replaced {
    name: NameId,
    by: RuleId,
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
    /// Finds the rule of every descriptor: that of the node at which the descriptor's path ends.
    ///
    /// The way down never turns back: once a node is chosen, a miss below it is a miss. A limit that
    /// the caller brings along takes the place of the tree, in a domain that the policy has.
    ///
    /// Allocates nothing for a request of up to 16 descriptors that bring no limits along.
    pub fn find<'p>(&'p self, request: &Request<'_>) -> Matches<'p> {
        let domain = self.tree.domain(request.domain);
        let mut matches = Matches {
            accounting: domain.map_or(Accounting::default(), |domain| domain.accounting),
            found: SmallVec::new(),
            overrides: Vec::new(),
            domain,
            replaced: SmallVec::new(),
        };
        for descriptor in request.descriptors {
            let found = match domain {
                None => Found::Nothing,
                Some(domain) => self.find_one(domain, descriptor, &mut matches),
            };
            matches.found.push(found);
        }
        if !matches.replaced.is_empty() {
            matches.take_out_replaced();
        }
        matches
    }

    fn find_one<'p>(
        &'p self,
        domain: &'p Domain,
        descriptor: &Descriptor<'_>,
        matches: &mut Matches<'p>,
    ) -> Found<'p> {
        if let Some(limit) = &descriptor.limit {
            let compiled = compile_override(&domain.name, limit);
            matches.overrides.push(Arc::new(compiled));
            return Found::Override(matches.overrides.len() - 1);
        }
        let Some(rule) = self.rule_at_end(domain.root, descriptor.entries) else {
            return Found::Nothing;
        };
        for name in &rule.replaces {
            let replaced = Replaced { name: *name, by: rule.id };
            if !matches.replaced.contains(&replaced) {
                matches.replaced.push(replaced);
            }
        }
        if rule.limits.is_empty() { Found::Unlimited(rule) } else { Found::Limited(rule) }
    }

    /// A path of no entries ends at the domain's root, which has no rule.
    fn rule_at_end(&self, root: NodeId, entries: &[Entry<'_>]) -> Option<&Rule> {
        let mut at = root;
        for entry in entries {
            (at, _) = self.tree.step(at, entry)?;
        }
        self.rule(self.tree.node(at).rule?)
    }

    /// The checks that a request must pass; `matches` is what [`Policy::find`] found for it.
    ///
    /// Allocates nothing up to four checks whose identities are of ordinary size.
    pub fn checks<'m, 'p: 'm>(
        &'p self,
        request: &Request<'_>,
        matches: &'m Matches<'p>,
    ) -> Checks<'m, 'p> {
        let mut checks =
            Checks { each: SmallVec::new(), spans: SmallVec::new(), names: SmallVec::new() };
        let mut identity = Identity::default();
        for (found, descriptor) in matches.found.iter().zip(request.descriptors) {
            let start = checks.each.len();
            match found {
                Found::Nothing | Found::Replaced(_) | Found::Unlimited(_) => {}
                Found::Limited(rule) => {
                    for (spec, plan) in rule.limits.iter().zip(rule.plans.iter()) {
                        if matches.takes_out(rule, plan) {
                            continue;
                        }
                        let entries = descriptor.entries;
                        let Some((limit, prefix)) = plan.of(spec, entries) else { continue };
                        let key = self.key(&mut identity, prefix, plan, entries);
                        let op = op(descriptor, spec.cost);
                        let name = spec.name.as_deref().unwrap_or("");
                        checks.push(key, limit, op, role(rule), name);
                        self.name_holder(&mut checks, descriptor);
                    }
                }
                Found::Override(at) => {
                    if let (Some(limit), Some(domain)) =
                        (matches.overrides.get(*at), matches.domain)
                    {
                        let entries = descriptor.entries;
                        let key = self.override_key(&mut identity, domain, limit, entries);
                        checks.push(key, limit, op(descriptor, 1), Role::Required, "");
                    }
                }
            }
            checks.spans.push(start..checks.each.len());
        }
        checks
    }

    /// The counter of a limit for a path that ended at its rule.
    pub(crate) fn key(
        &self,
        identity: &mut Identity,
        prefix: &[u8],
        plan: &Plan,
        entries: &[Entry<'_>],
    ) -> Key {
        let tag = plan.tag.as_ref().map(|tag| {
            identity.begin_tag();
            add_parts(identity, tag, entries);
            identity.hash(&self.secret)
        });
        identity.begin(prefix);
        add_parts(identity, &plan.parts, entries);
        Key { identity: identity.hash(&self.secret), tag }
    }

    /// The latest check's holder, if it is of slots and the caller names one.
    fn name_holder(&self, checks: &mut Checks<'_, '_>, descriptor: &Descriptor<'_>) {
        if let (Some(check), Some(text)) = (checks.each.last_mut(), descriptor.holder)
            && matches!(check.limit.algorithm, Algorithm::Concurrency(_))
        {
            check.holder = Some(self.holder(text));
        }
    }

    /// The holder that a text stands for: what a caller names, or what it was given.
    pub fn holder(&self, text: &[u8]) -> Holder {
        counter_key::holder(&self.secret, text)
    }

    fn override_key(
        &self,
        identity: &mut Identity,
        domain: &Domain,
        limit: &Limit,
        entries: &[Entry<'_>],
    ) -> Key {
        let first = |key: &str| entries.iter().find(|entry| entry.key == key.as_bytes());
        let has_all = domain.hash_tag.iter().all(|key| first(key).is_some());
        let tag = (has_all && !domain.hash_tag.is_empty()).then(|| {
            identity.begin_tag();
            for entry in domain.hash_tag.iter().filter_map(|key| first(key)) {
                identity.entry(entry.key, Held::Value(entry.value));
            }
            identity.hash(&self.secret)
        });
        identity.begin_override(&domain.name, limit);
        for entry in entries {
            identity.entry(entry.key, Held::Value(entry.value));
        }
        Key { identity: identity.hash(&self.secret), tag }
    }
}

impl Rule {
    /// The position of the limit of that name; a rule without a list has one limit, at 0.
    pub fn position(&self, name: &str) -> usize {
        let is_it = |spec: &LimitSpec| spec.name.as_deref().unwrap_or("") == name;
        self.limits.iter().position(is_it).unwrap_or(0)
    }

    /// The entries that make the counter of the limit at `position`, for a path that ended at this
    /// rule; where all values of a pattern share one, the pattern's text stands for the value.
    ///
    /// Allocates nothing up to eight entries.
    pub fn counter_of<'a>(
        &'a self,
        position: usize,
        entries: &[Entry<'a>],
    ) -> SmallVec<[Entry<'a>; 8]> {
        let parts = self.plans.get(position).map_or(&[][..], |plan| &plan.parts);
        let made_of = parts.iter().filter_map(|part| {
            let entry = *entries.get(part.at)?;
            let shared = part.shared.as_deref().map(str::as_bytes);
            Some(Entry { value: shared.unwrap_or(entry.value), ..entry })
        });
        made_of.collect()
    }
}

impl Matches<'_> {
    /// Whether a matched rule other than the limit's own replaces it. A name is taken out of the
    /// whole request, whatever branch of the tree it stands in.
    fn takes_out(&self, rule: &Rule, plan: &Plan) -> bool {
        plan.replaced_as.is_some_and(|name| {
            self.replaced.iter().any(|replaced| replaced.name == name && replaced.by != rule.id)
        })
    }

    fn take_out_replaced(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        for found in &mut found {
            if let Found::Limited(rule) = *found
                && rule.plans.iter().all(|plan| self.takes_out(rule, plan))
            {
                *found = Found::Replaced(rule);
            }
        }
        self.found = found;
    }
}

impl<'m, 'p> Checks<'m, 'p> {
    fn push(&mut self, key: Key, limit: &'m Arc<Limit>, op: Op, role: Role, name: &'p str) {
        if self.each.len() < CHECKS_MAX {
            self.each.push(Check { key, limit, op, role, holder: None });
            self.names.push(name);
        }
    }
}

/// A path that ended at a rule has as many entries as the rule has levels, so every part is there.
fn add_parts(identity: &mut Identity, parts: &[Part], entries: &[Entry<'_>]) {
    for part in parts {
        let Some(entry) = entries.get(part.at) else { continue };
        let held = match &part.shared {
            Some(pattern) => Held::Pattern(pattern.as_bytes()),
            None => Held::Value(entry.value),
        };
        identity.entry(entry.key, held);
    }
}

/// Refunding nothing is still a refund: it asks for nothing, so it passes.
fn op(descriptor: &Descriptor<'_>, cost: u64) -> Op {
    let cost = Hits(descriptor.hits.0.saturating_mul(cost));
    match (descriptor.refund, cost) {
        (true, cost) => Op::Refund { cost },
        (false, Hits::ZERO) => Op::Peek,
        (false, cost) => Op::Take { cost },
    }
}

fn role(rule: &Rule) -> Role {
    match (rule.shadow_mode, rule.quota_mode) {
        (true, _) => Role::Shadow,
        (false, true) => Role::Quota,
        (false, false) => Role::Required,
    }
}
