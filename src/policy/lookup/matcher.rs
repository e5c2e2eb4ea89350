//! Matcher: finds the rule of each descriptor and turns a request into checks.
//!
//! Not here: the layout of the tree (`tree`), combining the outcomes of the checks (`decide`).

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::counter_key;
use super::counter_key::{EntryValue, Identity};
use super::request_override::{compile_override, replace_number};
use super::tree::{Domain, KeyEntry, KeyTemplate, NodeId, Policy, Rule, SelectedLimit};
use crate::domain::{
    Accounting, Algorithm, Bounds, Charge, Check, CounterKey, Descriptor, Entry, Hits, HoldRequest,
    Holder, Limit, Op, Request, Role, RuleId,
};
use crate::policy::compiled_policy::LimitSpec;

/// Default maximum number of checks per call. A policy does not compile if a call to one of its
/// domains could exceed this maximum with only one descriptor for each sequence of keys. A call
/// that exceeds it in any other way is rejected when it arrives.
pub const CHECKS_MAX: usize = Bounds::DEFAULT.checks_max;

/// Number of descriptors that one request can have without a heap allocation in the matcher. Envoy
/// sends at most one descriptor per `rate_limits` entry of the route; routes usually have two or
/// three.
const DESCRIPTORS_INLINE: usize = 16;

/// Result of matching one descriptor against the policy.
#[derive(Clone, Copy, Debug)]
pub enum DescriptorMatch<'p> {
    /// No rule matches, or the policy does not contain the domain.
    NoRule,
    /// Rule with limits, all of which are replaced by rules that other descriptors match.
    Replaced(&'p Rule),
    /// Rule without limits, which allows every request.
    Unlimited(&'p Rule),
    /// Rule with limits, of which at least one is not replaced.
    Limited(&'p Rule),
    /// Request override that counts apart, as an index into [`Matches::overrides`].
    Override(usize),
    /// Rule whose only limit has the number of a request override, the next of
    /// [`Matches::overrides`]. The rest of the rule applies.
    Overridden(&'p Rule),
}

impl<'p> DescriptorMatch<'p> {
    /// Returns the rule that matches; `None` for a request override that counts apart.
    pub fn rule(&self) -> Option<&'p Rule> {
        match self {
            DescriptorMatch::Replaced(rule)
            | DescriptorMatch::Unlimited(rule)
            | DescriptorMatch::Limited(rule)
            | DescriptorMatch::Overridden(rule) => Some(rule),
            DescriptorMatch::NoRule | DescriptorMatch::Override(_) => None,
        }
    }
}

/// Results of matching a request, one per descriptor.
#[derive(Debug, Default)]
pub struct Matches<'p> {
    /// Accounting mode of the request's domain; the default if the domain is unknown.
    pub accounting: Accounting,
    /// Match result of each descriptor, in the order of the request.
    pub found: SmallVec<[DescriptorMatch<'p>; DESCRIPTORS_INLINE]>,
    /// Limits compiled from request overrides, in the order of their descriptors.
    pub overrides: Vec<Arc<Limit>>,
    domain: Option<&'p Domain>,
    /// Limit names that the matched rules replace; sorted and without duplicates once all
    /// descriptors are matched.
    replaced: SmallVec<[Replacement<'p>; 4]>,
}

impl Matches<'_> {
    /// Returns whether the policy has the request's domain.
    pub fn has_domain(&self) -> bool {
        self.domain.is_some()
    }

    /// Returns the keys of the entries by which the quota descriptors of the request's domain are
    /// grouped. If there are none, each quota descriptor forms its own group.
    pub fn quota_group(&self) -> &[Box<str>] {
        self.domain.map_or(&[], |domain| &domain.quota_group)
    }
}

/// Limit name that a matched rule replaces for the whole request, with the rule's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Replacement<'p> {
    name: &'p str,
    rule: RuleId,
}

/// Checks that a request must pass. Each check gets its role from the matched rule; `decide` then
/// adjusts the roles of quota descriptors.
#[derive(Debug, Default)]
pub struct Checks<'m, 'p> {
    /// All checks, ordered by descriptor, then by position in the policy file.
    pub each: SmallVec<[Check<'m>; 4]>,
    /// For each descriptor, the range of its checks in [`each`](Checks::each).
    pub spans: SmallVec<[Range<usize>; 4]>,
    /// Name of the limit of each check; empty for unnamed limits.
    pub names: SmallVec<[&'p str; 4]>,
    /// Whether the request needs more checks than the policy allows. If so, the excess checks are
    /// missing.
    pub is_truncated: bool,
}

impl Policy {
    /// Finds the rule for each descriptor: the rule of the tree node that the descriptor's last
    /// entry matches.
    ///
    /// Matching never backtracks: if an entry matches no child of the node reached so far, the
    /// descriptor has no rule. A request override takes precedence over the tree if the policy
    /// contains the domain.
    ///
    /// Does not allocate for up to 16 descriptors without overrides.
    pub fn find<'p>(&'p self, request: &Request<'_>) -> Matches<'p> {
        let mut matches = Matches::default();
        self.find_into(request, &mut matches);
        matches
    }

    /// Like [`find`](Self::find), but fills `matches`, which must be empty. Returning them would copy
    /// them.
    pub fn find_into<'p>(&'p self, request: &Request<'_>, matches: &mut Matches<'p>) {
        matches.domain = self.tree.domain(request.domain);
        matches.accounting =
            matches.domain.map_or(Accounting::default(), |domain| domain.accounting);
        for descriptor in request.descriptors {
            let found = match matches.domain {
                None => DescriptorMatch::NoRule,
                Some(domain) => self.match_descriptor(domain, descriptor, matches),
            };
            matches.found.push(found);
        }
        if !matches.replaced.is_empty() {
            matches.replaced.sort_unstable();
            matches.replaced.dedup();
            matches.mark_replaced();
        }
    }

    fn match_descriptor<'p>(
        &'p self,
        domain: &'p Domain,
        descriptor: &Descriptor<'_>,
        matches: &mut Matches<'p>,
    ) -> DescriptorMatch<'p> {
        let rule = self.find_rule(domain.root, descriptor.entries);
        if let Some(limit) = &descriptor.limit
            && !rule.is_some_and(Rule::ignores_request_limits)
        {
            let limit = &rule.map_or(*limit, |rule| rule.scale_request_limit(limit));
            let charge = override_charge(domain, rule, descriptor);
            if let Some(rule) = rule
                && let [LimitSpec { limit: own, tiers: None, .. }] = &*rule.limits
                && let Some(changed) = replace_number(own, limit)
            {
                matches.overrides.push(Arc::new(Limit { charge, ..changed }));
                return DescriptorMatch::Overridden(rule);
            }
            matches.overrides.push(Arc::new(compile_override(&domain.name, limit, charge)));
            return DescriptorMatch::Override(matches.overrides.len() - 1);
        }
        let Some(rule) = rule else { return DescriptorMatch::NoRule };
        for name in &rule.replaces {
            matches.replaced.push(Replacement { name, rule: rule.id });
        }
        if rule.limits.is_empty() {
            DescriptorMatch::Unlimited(rule)
        } else {
            DescriptorMatch::Limited(rule)
        }
    }

    /// Returns the rule of the node that the entries lead to, without overrides of values. Returns `None` if an entry matches no
    /// node or the last node has no rule. An empty list of entries leads to the domain's root,
    /// which has no rule.
    pub(crate) fn rule_at_end(&self, root: NodeId, entries: &[Entry<'_>]) -> Option<&Rule> {
        let mut at = root;
        for entry in entries {
            (at, _) = self.tree.find_child(at, entry)?;
        }
        self.rule(self.tree.node(at).rule?)
    }

    /// Returns the rule of the node that the entries lead to, with all overrides in force.
    pub(crate) fn find_rule(&self, root: NodeId, entries: &[Entry<'_>]) -> Option<&Rule> {
        Some(self.rule_in_force(self.rule_at_end(root, entries)?, entries))
    }

    /// Returns the checks that a request must pass. `matches` is the result of [`Policy::find`] for
    /// the same request.
    ///
    /// Does not allocate for up to four checks whose counter identities have at most 512 bytes
    /// each.
    pub fn checks<'m, 'p: 'm>(
        &'p self,
        request: &Request<'_>,
        matches: &'m Matches<'p>,
    ) -> Checks<'m, 'p> {
        let mut checks = Checks::default();
        self.push_checks(request, matches, &mut checks);
        checks
    }

    /// Like [`checks`](Self::checks), but fills `checks`, which must be empty. Returning them would
    /// copy them.
    pub fn push_checks<'m, 'p: 'm>(
        &'p self,
        request: &Request<'_>,
        matches: &'m Matches<'p>,
        checks: &mut Checks<'m, 'p>,
    ) {
        checks.reserve(request.descriptors.len());
        let mut identity = Identity::default();
        let mut quotas = 0;
        let mut overrides = matches.overrides.iter();
        for (found, descriptor) in matches.found.iter().zip(request.descriptors) {
            let start = checks.each.len();
            match found {
                DescriptorMatch::NoRule
                | DescriptorMatch::Replaced(_)
                | DescriptorMatch::Unlimited(_) => {}
                DescriptorMatch::Limited(rule) | DescriptorMatch::Overridden(rule) => {
                    // `match_descriptor` compiled the limit with the charge of this descriptor.
                    let is_overridden = matches!(found, DescriptorMatch::Overridden(_));
                    let changed = if is_overridden { overrides.next() } else { None };
                    let (entries, role) = (descriptor.entries, role_of_rule(rule, quotas));
                    for (spec, template) in rule.limits.iter().zip(rule.key_templates.iter()) {
                        if changed.is_none() && matches.is_replaced(rule, spec) {
                            continue;
                        }
                        let Some(mut selected) = template.select_limit(spec, entries) else {
                            continue;
                        };
                        if let Some(limit) = changed {
                            selected.bill_limit = selected.bill_limit.map(|_| limit);
                            selected.limit = limit;
                        }
                        let Some((limit, op)) = requested_op(descriptor, selected, spec.cost)
                        else {
                            continue;
                        };
                        let prefix = selected.prefix;
                        let key = self.counter_key(&mut identity, prefix, template, entries);
                        let name = spec.name.as_deref().unwrap_or("");
                        let may_block = !is_bill(&selected, descriptor);
                        let check = Check { key, limit, op, role, holder: None, may_block };
                        checks.push(check, name, self.checks_max);
                        self.set_holder(checks, descriptor);
                    }
                }
                DescriptorMatch::Override(_) => {
                    if let (Some(limit), Some(domain)) = (overrides.next(), matches.domain) {
                        let entries = descriptor.entries;
                        let key = self.override_key(&mut identity, domain, limit, entries);
                        // `match_descriptor` compiled the limit with the charge of this descriptor.
                        let (bill_limit, prefix, class) = (None, &[][..], None);
                        let selected = SelectedLimit { limit, bill_limit, prefix, class };
                        if let Some((limit, op)) = requested_op(descriptor, selected, 1) {
                            let rule = self.find_rule(domain.root, entries);
                            let is_shadow = rule.is_some_and(Rule::is_shadowed_by_operator);
                            let role = if is_shadow { Role::Shadow } else { Role::Required };
                            let (holder, may_block) = (None, false);
                            let check = Check { key, limit, op, role, holder, may_block };
                            checks.push(check, "", self.checks_max);
                            self.set_holder(checks, descriptor);
                        }
                    }
                }
            }
            // Descriptors without checks have no number, so that there are no more than checks.
            let is_quota = checks.each.get(start).is_some_and(Check::is_quota);
            quotas += u16::from(is_quota);
            checks.spans.push(start..checks.each.len());
        }
    }

    /// Returns the counter key of a limit for a descriptor that matched the limit's rule.
    pub(crate) fn counter_key(
        &self,
        identity: &mut Identity,
        prefix: &[u8],
        template: &KeyTemplate,
        entries: &[Entry<'_>],
    ) -> CounterKey {
        let tag = template.tag.as_ref().map(|tag| {
            identity.begin_tag();
            push_key_entries(identity, tag, entries);
            identity.hash(&self.secret)
        });
        identity.begin(prefix);
        push_key_entries(identity, &template.entries, entries);
        CounterKey { identity: identity.hash(&self.secret), tag }
    }

    /// Sets the slot holder of the last check if its limit is a concurrency limit and the
    /// descriptor names a holder, or the hold that the descriptor makes or settles.
    fn set_holder(&self, checks: &mut Checks<'_, '_>, descriptor: &Descriptor<'_>) {
        if let (Some(check), Some(hold)) = (checks.each.last_mut(), descriptor.hold)
            && check.limit.reserve.is_some()
        {
            let is_named = !hold.id().is_empty();
            check.holder = is_named.then(|| self.hash_holder(hold.id()));
            if let HoldRequest::Settle { .. } = hold {
                check.role = Role::Shadow;
            }
        }
        if let (Some(check), Some(text)) = (checks.each.last_mut(), descriptor.holder)
            && matches!(check.limit.algorithm, Algorithm::Concurrency(_))
        {
            check.holder = Some(self.hash_holder(text));
        }
    }

    /// Hashes the name of a slot holder, which is either sent by the caller or generated.
    pub fn hash_holder(&self, text: &[u8]) -> Holder {
        counter_key::hash_holder(&self.secret, text)
    }

    /// Returns the counter key of a request override that counts apart. Overrides with the same
    /// entries share a counter if their windows have the same length.
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
                identity.push_entry(entry.key, EntryValue::Request(entry.value));
            }
            identity.hash(&self.secret)
        });
        identity.begin_override(&domain.name, limit);
        for entry in entries {
            identity.push_entry(entry.key, EntryValue::Request(entry.value));
        }
        CounterKey { identity: identity.hash(&self.secret), tag }
    }
}

impl Rule {
    /// Returns the index of this rule's limit called `name`, or 0 if no limit has that name. An
    /// empty `name` finds an unnamed limit.
    pub fn limit_position(&self, name: &str) -> usize {
        let has_name = |spec: &LimitSpec| spec.name.as_deref().unwrap_or("") == name;
        self.limits.iter().position(has_name).unwrap_or(0)
    }

    /// Returns the descriptor entries that the counter key of the limit at `position` contains.
    /// With `share_threshold`, the pattern's text replaces the request's value.
    ///
    /// Does not allocate for up to eight entries.
    pub fn counter_entries<'a>(
        &'a self,
        position: usize,
        entries: &[Entry<'a>],
    ) -> SmallVec<[Entry<'a>; 8]> {
        let key_entries =
            self.key_templates.get(position).map_or(&[][..], |template| &template.entries);
        let counted = key_entries.iter().filter_map(|key_entry| {
            let entry = *entries.get(key_entry.position)?;
            let shared = key_entry.shared_pattern.as_deref().map(str::as_bytes);
            Some(Entry { value: shared.unwrap_or(entry.value), ..entry })
        });
        counted.collect()
    }
}

impl Matches<'_> {
    /// Returns whether a matched rule other than `rule` replaces the limit. A replacement applies
    /// to all descriptors of the request.
    fn is_replaced(&self, rule: &Rule, limit: &LimitSpec) -> bool {
        limit.name.as_deref().is_some_and(|name| {
            let first = self.replaced.partition_point(|replaced| replaced.name < name);
            let same = self.replaced[first..].iter().take_while(|replaced| replaced.name == name);
            same.map(|replaced| replaced.rule).any(|replacing| replacing != rule.id)
        })
    }

    fn mark_replaced(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        for found in &mut found {
            if let DescriptorMatch::Limited(rule) = *found
                && rule.limits.iter().all(|limit| self.is_replaced(rule, limit))
            {
                *found = DescriptorMatch::Replaced(rule);
            }
        }
        self.found = found;
    }
}

impl<'m, 'p> Checks<'m, 'p> {
    /// Makes room for one check per descriptor.
    fn reserve(&mut self, descriptors: usize) {
        self.each.reserve(descriptors);
        self.spans.reserve(descriptors);
        self.names.reserve(descriptors);
    }

    fn push(&mut self, check: Check<'m>, name: &'p str, checks_max: usize) {
        if self.each.len() < checks_max {
            self.each.push(check);
            self.names.push(name);
        } else {
            self.is_truncated = true;
        }
    }
}

/// Appends the entries that a counter key or a hash tag consists of to the input of the hash. Each
/// entry has the request's value or, with `share_threshold`, the text of the pattern that matched
/// it.
fn push_key_entries(identity: &mut Identity, key: &[KeyEntry], entries: &[Entry<'_>]) {
    for key_entry in key {
        // A path that matched a rule has as many entries as the rule has levels.
        let Some(entry) = entries.get(key_entry.position) else { continue };
        let value = match &key_entry.shared_pattern {
            Some(pattern) => EntryValue::Pattern(pattern.as_bytes()),
            None => EntryValue::Request(entry.value),
        };
        identity.push_entry(entry.key, value);
    }
}

/// Returns the operation that a descriptor requests, and the limit to which the operation applies.
/// A descriptor with 0 hits requests a peek. A refund of 0 hits stays a refund, because a peek can
/// be refused.
///
/// Under `charge: billed`, hits from the descriptor's own `hits_addend` are a bill. A bill is not
/// multiplied by the rule's `cost`, because its hits have already been used. Returns `None` if the limit
/// is not asked.
fn requested_op<'a>(
    descriptor: &Descriptor<'_>,
    selected: SelectedLimit<'a>,
    cost: u64,
) -> Option<(&'a Arc<Limit>, Op)> {
    if let Some(hold) = descriptor.hold {
        return requested_hold(hold, descriptor.hits, selected.limit, cost);
    }
    let (hits, request_cost) = (descriptor.hits, Hits(cost));
    let cost = Hits(hits.0.saturating_mul(cost));
    Some(match selected.bill_limit {
        // Less than a reset.
        _ if descriptor.refund => {
            (selected.limit, Op::Refund { cost: cost.min(Hits(u64::MAX - 1)) })
        }
        _ if hits == Hits::ZERO => (selected.limit, Op::Peek { hits: request_cost }),
        Some(limit) if descriptor.has_hits_addend => (limit, Op::Take { cost: hits }),
        Some(_) | None => (selected.limit, Op::Take { cost }),
    })
}

/// Returns the operation of a descriptor that holds hits or settles, and the limit. Returns `None` for a
/// settle on a limit without `reserve`, which was charged the estimate. An estimate is not a bill.
fn requested_hold<'a>(
    hold: HoldRequest<'_>,
    hits: Hits,
    limit: &'a Arc<Limit>,
    cost: u64,
) -> Option<(&'a Arc<Limit>, Op)> {
    let op = match (hold, limit.reserve) {
        (HoldRequest::Settle { .. }, reserve) => Op::Settle { cost: reserve.map(|_| hits)? },
        (HoldRequest::Hold { .. }, _) if hits == Hits::ZERO => Op::Peek { hits: Hits(cost) },
        (HoldRequest::Hold { .. }, None) => Op::Take { cost: Hits(hits.0.saturating_mul(cost)) },
        (HoldRequest::Hold { ttl_secs_max, .. }, Some(reserve)) => {
            Op::Hold { cost: hits, ttl_secs: reserve.ttl_secs().min(ttl_secs_max) }
        }
    };
    Some((limit, op))
}

/// Returns whether a descriptor's hits are a bill: hits above 0 of its own, under `charge: billed`. An
/// estimate is none.
fn is_bill(selected: &SelectedLimit<'_>, descriptor: &Descriptor<'_>) -> bool {
    selected.bill_limit.is_some()
        && descriptor.has_hits_addend
        && descriptor.hits > Hits::ZERO
        && descriptor.hold.is_none()
}

/// Returns the charge mode of a request override. If the overridden rule has exactly one limit, the
/// override has the charge mode of that limit, otherwise that of the domain. If that mode is
/// `billed` and the descriptor sets its own `hits_addend`, the result is [`Charge::Always`].
fn override_charge(domain: &Domain, rule: Option<&Rule>, descriptor: &Descriptor<'_>) -> Charge {
    let charge = match rule.map(|rule| &*rule.limits) {
        Some([spec]) => spec.limit.charge,
        Some(_) | None => domain.charge,
    };
    match charge {
        Charge::Billed if descriptor.has_hits_addend => Charge::Always,
        Charge::Admitted | Charge::Billed | Charge::Always => charge,
    }
}

/// Returns the role of a rule's checks. `quotas` is the number of quota descriptors earlier in the
/// call that have checks.
fn role_of_rule(rule: &Rule, quotas: u16) -> Role {
    match (rule.shadow_mode, rule.quota_mode) {
        (true, _) => Role::Shadow,
        (false, true) => Role::Quota(quotas),
        (false, false) => Role::Required,
    }
}
