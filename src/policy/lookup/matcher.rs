//! Matcher: finds the rule of each descriptor, and turns a request into the checks that it must pass.
//!
//! Not here: the layout of the tree (`tree`), combining the outcomes of the checks (`decide`).

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::counter_key;
use super::counter_key::{Held, Identity};
use super::tree::{Domain, NameId, NodeId, Part, Plan, Policy, Rule};
use crate::domain::{
    Accounting, Algorithm, Bounds, Check, CounterKey, Descriptor, Entry, Hits, Holder, Limit, Op,
    Request, Role, RuleId,
};
use crate::policy::compile::limit_numbers::compile_override;
use crate::policy::compile::spec::LimitSpec;

/// Maximum checks of one call: [`Bounds::checks_max`].
pub const CHECKS_MAX: usize = Bounds::DEFAULT.checks_max;

/// Descriptors that are matched without a heap allocation. Envoy sends one per rate limit action of
/// the route, usually two or three.
const DESCRIPTORS_INLINE: usize = 16;

/// The match of one descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Found<'p> {
    /// No rule matches.
    Nothing,
    /// A rule whose limits are all replaced by another descriptor's rule.
    Replaced(&'p Rule),
    /// An unlimited rule.
    Unlimited(&'p Rule),
    /// A rule with limits.
    Limited(&'p Rule),
    /// A request override: an index into `Matches::overrides`.
    Override(usize),
}

/// The matches of a request, one per descriptor.
#[derive(Debug)]
pub struct Matches<'p> {
    /// Accounting of the domain.
    pub accounting: Accounting,
    /// Matches in the order of the descriptors.
    pub found: SmallVec<[Found<'p>; DESCRIPTORS_INLINE]>,
    /// Compiled request overrides.
    pub overrides: Vec<Arc<Limit>>,
    domain: Option<&'p Domain>,
    replaced: SmallVec<[Replacement; 4]>,
}

impl Matches<'_> {
    /// Returns whether the policy has the domain of the request.
    pub fn domain_known(&self) -> bool {
        self.domain.is_some()
    }
}

/// A limit name that a matched rule replaces for the whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Replacement {
    name: NameId,
    by: RuleId,
}

/// The checks of a request. Roles follow the rules; `decide` adjusts them to the modes of the process.
#[derive(Debug)]
pub struct Checks<'m, 'p> {
    /// All checks, ordered by descriptor and then by file.
    pub each: SmallVec<[Check<'m>; 4]>,
    /// For each descriptor, its range in `each`.
    pub spans: SmallVec<[Range<usize>; 4]>,
    /// For each check, the name of its limit; empty if it has none.
    pub names: SmallVec<[&'p str; 4]>,
}

impl Policy {
    /// Finds the rule of every descriptor: the rule of the node where the descriptor's path ends.
    ///
    /// Matching never backtracks: after a node is chosen, a miss below it is a miss. A request override
    /// replaces the tree, provided that the policy has the domain.
    ///
    /// Allocates nothing for up to 16 descriptors without overrides.
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
            matches.remove_replaced();
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
            let replaced = Replacement { name: *name, by: rule.id };
            if !matches.replaced.contains(&replaced) {
                matches.replaced.push(replaced);
            }
        }
        if rule.limits.is_empty() { Found::Unlimited(rule) } else { Found::Limited(rule) }
    }

    /// Returns the rule of the node at the end of the path. An empty path ends at the domain's root,
    /// which has no rule.
    fn rule_at_end(&self, root: NodeId, entries: &[Entry<'_>]) -> Option<&Rule> {
        let mut at = root;
        for entry in entries {
            (at, _) = self.tree.step(at, entry)?;
        }
        self.rule(self.tree.node(at).rule?)
    }

    /// Returns the checks that a request must pass; `matches` comes from [`Policy::find`].
    ///
    /// Allocates nothing for up to four checks with identities of ordinary size.
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
                        if matches.is_replaced(rule, plan) {
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

    /// Returns the counter key of a limit for the entries that matched its rule.
    pub(crate) fn key(
        &self,
        identity: &mut Identity,
        prefix: &[u8],
        plan: &Plan,
        entries: &[Entry<'_>],
    ) -> CounterKey {
        let tag = plan.tag.as_ref().map(|tag| {
            identity.begin_tag();
            add_parts(identity, tag, entries);
            identity.hash(&self.secret)
        });
        identity.begin(prefix);
        add_parts(identity, &plan.parts, entries);
        CounterKey { identity: identity.hash(&self.secret), tag }
    }

    /// Sets the holder of the last check if it takes concurrency slots and the caller names a holder.
    fn name_holder(&self, checks: &mut Checks<'_, '_>, descriptor: &Descriptor<'_>) {
        if let (Some(check), Some(text)) = (checks.each.last_mut(), descriptor.holder)
            && matches!(check.limit.algorithm, Algorithm::Concurrency(_))
        {
            check.holder = Some(self.holder(text));
        }
    }

    /// Hashes a holder name, given by the caller or generated.
    pub fn holder(&self, text: &[u8]) -> Holder {
        counter_key::holder(&self.secret, text)
    }

    fn override_key(
        &self,
        identity: &mut Identity,
        domain: &Domain,
        limit: &Limit,
        entries: &[Entry<'_>],
    ) -> CounterKey {
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
        CounterKey { identity: identity.hash(&self.secret), tag }
    }
}

impl Rule {
    /// Returns the index of the limit with that name; a rule without a list has one limit, at 0.
    pub fn position(&self, name: &str) -> usize {
        let is_it = |spec: &LimitSpec| spec.name.as_deref().unwrap_or("") == name;
        self.limits.iter().position(is_it).unwrap_or(0)
    }

    /// Returns the entries that make the counter of the limit at `position`. With `share_threshold`, a
    /// pattern's text stands for the value.
    ///
    /// Allocates nothing for up to eight entries.
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
    /// Returns whether a matched rule other than the limit's own replaces the limit. A replacement
    /// applies to the whole request, in every branch of the tree.
    fn is_replaced(&self, rule: &Rule, plan: &Plan) -> bool {
        plan.replaced_as.is_some_and(|name| {
            self.replaced.iter().any(|replaced| replaced.name == name && replaced.by != rule.id)
        })
    }

    fn remove_replaced(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        for found in &mut found {
            if let Found::Limited(rule) = *found
                && rule.plans.iter().all(|plan| self.is_replaced(rule, plan))
            {
                *found = Found::Replaced(rule);
            }
        }
        self.found = found;
    }
}

impl<'m, 'p> Checks<'m, 'p> {
    fn push(&mut self, key: CounterKey, limit: &'m Arc<Limit>, op: Op, role: Role, name: &'p str) {
        if self.each.len() < CHECKS_MAX {
            self.each.push(Check { key, limit, op, role, holder: None });
            self.names.push(name);
        }
    }
}

/// Adds the entries of a key. A path that matched a rule has as many entries as the rule has levels.
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

/// Returns the operation of a descriptor. A refund of 0 hits is a refund, not a peek, so it passes.
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
