//! Overrides that operators set at run time: what they do to rules.
//!
//! A rule with overrides in force is a copy of the rule, with the same id, path, and counters, so
//! that everything after the match treats it as any other rule. For domains and rules, the copies
//! are made when overrides change, and cost nothing on the request path.
//!
//! Not here: which overrides apply to the values of a descriptor (`override_index`), how long
//! overrides last, who may set them, and where they are stored (`app`).

use std::sync::Arc;

use super::changed_limits::{TIERS_FAULT, deny_all, scaled, scaled_number, with_numbers};
use super::matcher::{DescriptorMatch, Matches};
use super::override_index::{
    OverrideIndex, RuleOverrides, allows_rule, has_wildcard, rule_with_patterns, specificity,
};
use super::patterns::NamePattern;
use super::tree::{Policy, Rule, TreeNode};
use crate::domain::{Algorithm, Entry, FixedWindow, Limit, Override, Request, Window};
use crate::policy::compiled_policy::{LimitSpec, TiersSpec, ValueSpec};
use crate::policy::override_entry::{
    OverrideChange, OverrideEntry, OverrideMode, OverrideTarget, fault,
};
use crate::policy::time_zone::{anchored_calendar, parse_anchor};

/// Whether the policy has the target of an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The override applies to at least one rule.
    Matched,
    /// No rule is a target of the override. It applies once a policy has such a rule.
    Unmatched,
}

/// Limit with other numbers and, for an `anchor`, the prefix of its counters' identities.
type ChangedLimit = (Limit, Option<Box<[u8]>>);

impl Policy {
    /// Checks an override against the policy, which may have other overrides.
    ///
    /// # Errors
    ///
    /// Returns an error for numbers that a targeted rule could not have, for `deny` or numbers if all
    /// targeted rules are unlimited, and for a target with `*` that exceeds a bound.
    pub fn check_override(&self, entry: &OverrideEntry) -> Result<Fit, String> {
        let targeted = self.targeted_rules(&entry.target);
        if targeted.is_empty() {
            return Ok(Fit::Unmatched);
        }
        let needs_limit = match &entry.change {
            OverrideChange::Numbers { .. } | OverrideChange::Mode(OverrideMode::Deny) => true,
            OverrideChange::Scale(_) | OverrideChange::Mode(_) => false,
        };
        if needs_limit && targeted.iter().all(|rule| rule.limits.is_empty()) {
            return fault(format!(
                "`{}` is unlimited, so no limit could be overridden; give it a limit in the policy",
                entry.target
            ));
        }
        self.check_numbers(&targeted, entry)?;
        let has_room = |index: &Arc<OverrideIndex>| index.has_room_for(entry);
        if has_wildcard(&entry.target) && !self.overrides.as_ref().is_none_or(has_room) {
            return fault(
                "there are too many overrides with `*` for these keys; delete some, or override the \
                 rule or exact values",
            );
        }
        Ok(Fit::Matched)
    }

    /// Returns the policy with exactly these overrides in force. At most one should have each
    /// [`id`](OverrideEntry::id). Overrides without a target in the policy have no effect.
    #[must_use]
    pub fn with_overrides<'e>(
        &self,
        entries: impl IntoIterator<Item = &'e Arc<OverrideEntry>>,
    ) -> Policy {
        let mut entries = entries.into_iter().peekable();
        let loaded = self.rules_without_overrides();
        if entries.peek().is_none() {
            return Policy { rules: Arc::clone(loaded), overrides: None, ..self.clone() };
        }
        let index = OverrideIndex::new(Arc::clone(loaded), entries);
        let rule_in_force = |rule: &Rule| {
            let path = self.tree.path_to(rule.node);
            let keys = path.iter().map(|node| &*node.key);
            let value_overrides = index.sequence_position(self.domain_name(rule), keys);
            Rule { value_overrides, ..self.apply_overrides(rule, &[], &index) }
        };
        let rules = Arc::new(loaded.iter().map(rule_in_force).collect());
        Policy { rules, overrides: Some(Arc::new(index)), ..self.clone() }
    }

    /// Returns the policy after the overrides `ended` have ended and those of `set` are in force, which
    /// replace those of the same id. Takes microseconds. Returns `None` unless all of them are of
    /// values without `*`, with keys that an override already has;
    /// [`with_overrides`](Self::with_overrides) is needed then.
    #[must_use]
    pub fn with_changed_overrides(
        &self,
        ended: &[&Arc<OverrideEntry>],
        set: &[&Arc<OverrideEntry>],
    ) -> Option<Policy> {
        let index = self.overrides.as_ref()?.with_exact_changes(ended, set)?;
        Some(Policy { overrides: Some(Arc::new(index)), ..self.clone() })
    }

    /// Returns the same as [`find`](Self::find), but with the counters of rules that an override
    /// allows or denies without counting.
    pub fn find_counted<'p>(&'p self, request: &Request<'_>) -> Matches<'p> {
        let mut matches = self.find(request);
        for found in &mut matches.found {
            let overrides = found.rule().and_then(|rule| rule.overrides.as_deref());
            if let Some(rule) = overrides.and_then(|overrides| overrides.counted.as_deref())
                && !rule.limits.is_empty()
            {
                *found = DescriptorMatch::Limited(rule);
            }
        }
        matches
    }

    /// Returns the overrides in force on the rule that a descriptor with these entries matches: those
    /// of numbers, then the scale, then the mode.
    pub fn overrides_in_force(&self, domain: &str, entries: &[Entry<'_>]) -> &[Arc<OverrideEntry>] {
        let root = self.tree.domain(domain).map(|domain| domain.root);
        let rule = root.and_then(|root| self.find_rule(root, entries));
        rule.map_or(&[], Rule::overrides)
    }

    /// Returns a rule with the overrides of the values of a descriptor, which matches this rule.
    pub(crate) fn rule_in_force<'p>(&'p self, rule: &'p Rule, entries: &[Entry<'_>]) -> &'p Rule {
        let Some(at) = rule.value_overrides else { return rule };
        self.find_value_overrides(at, rule, entries).unwrap_or(rule)
    }

    fn find_value_overrides<'p>(
        &'p self,
        at: u32,
        rule: &Rule,
        entries: &[Entry<'_>],
    ) -> Option<&'p Rule> {
        let index = self.overrides.as_deref()?;
        let (exact, patterns) = index.value_overrides(at, entries)?;
        let loaded = index.loaded.get(self.rule_position(rule.id))?;
        let apply = |values: &[&Arc<OverrideEntry>]| self.apply_overrides(loaded, values, index);
        let Some(exact) = exact else {
            return rule_with_patterns(patterns, loaded, entries, apply);
        };
        let build = || {
            let own = exact.overrides.iter().filter(|entry| allows_rule(&entry.target, loaded));
            let matching = patterns.iter().filter(|target| target.matches(loaded, entries));
            let values: Vec<_> = own.chain(matching.map(|target| &target.entry)).collect();
            (!values.is_empty()).then(|| Box::new(apply(&values)))
        };
        exact.rule.get_or_init(build).as_deref()
    }

    /// Applies the overrides of values, and those of the rule and its domain, to a rule without
    /// overrides. Numbers that the rule cannot have are skipped, because a reload may have changed it.
    fn apply_overrides(
        &self,
        loaded: &Rule,
        values: &[&Arc<OverrideEntry>],
        index: &OverrideIndex,
    ) -> Rule {
        let mut rule = loaded.clone();
        let broad = index.broad(self.domain_name(loaded), loaded);
        let mut ranked: Vec<_> = broad.chain(values.iter().copied()).collect();
        if ranked.is_empty() {
            return rule;
        }
        ranked.sort_by_cached_key(|entry| specificity(entry));
        let mut applied: Vec<Arc<OverrideEntry>> = Vec::new();
        for at in 0..loaded.limits.len() {
            let is_for_limit = |entry: &&&Arc<OverrideEntry>| {
                matches!(entry.change, OverrideChange::Numbers { .. })
                    && names_limit(&entry.target, loaded, at)
            };
            let Some(entry) = ranked.iter().find(is_for_limit) else { continue };
            let changed = self.override_numbers(loaded, at, &entry.change);
            let Ok((limit, prefix)) = changed else { continue };
            let spec = &mut Arc::make_mut(&mut rule.limits)[at];
            (spec.bill_limit, spec.limit) = (limit.bill_limit().map(Arc::new), Arc::new(limit));
            if let Some(prefix) = prefix {
                Arc::make_mut(&mut rule.key_templates)[at].prefix = prefix;
            }
            if !applied.iter().any(|other| Arc::ptr_eq(other, entry)) {
                applied.push(Arc::clone(entry));
            }
        }
        let scale = ranked.iter().find(|entry| matches!(entry.change, OverrideChange::Scale(_)));
        let denies =
            ranked.iter().find(|entry| entry.change == OverrideChange::Mode(OverrideMode::Deny));
        let mode = ranked.iter().find(|entry| matches!(entry.change, OverrideChange::Mode(_)));
        let mut counted = None;
        for entry in [scale, denies.or(mode)].into_iter().flatten() {
            applied.push(Arc::clone(entry));
            match entry.change {
                OverrideChange::Numbers { .. } => {}
                OverrideChange::Scale(percent) => {
                    rule.edit_limits(|limit, has_tiers| scaled(limit, percent, has_tiers));
                }
                OverrideChange::Mode(OverrideMode::Shadow) => rule.shadow_mode = true,
                OverrideChange::Mode(OverrideMode::Deny) => {
                    counted = Some(Box::new(rule.clone()));
                    rule.edit_limits(|limit, _| deny_all(limit));
                }
                OverrideChange::Mode(OverrideMode::Unlimited) => {
                    counted = Some(Box::new(rule.clone()));
                    (rule.limits, rule.key_templates) = (Arc::default(), Arc::default());
                }
            }
        }
        let overrides = RuleOverrides { entries: applied, counted };
        rule.overrides = (!overrides.entries.is_empty()).then(|| Arc::new(overrides));
        rule
    }

    /// Returns a rule's limit with the numbers of an override.
    fn override_numbers(
        &self,
        rule: &Rule,
        at: usize,
        change: &OverrideChange,
    ) -> Result<ChangedLimit, String> {
        let (spec, template) = (&rule.limits[at], &rule.key_templates[at]);
        let OverrideChange::Numbers { limit, burst, anchor } = change else {
            return Ok((Limit::clone(&spec.limit), None));
        };
        if spec.tiers.is_some() {
            return fault(TIERS_FAULT);
        }
        let requests_per_unit = limit.unwrap_or(spec.limit.rate.requests_per_unit);
        let mut changed = match (limit, burst) {
            (None, None) => Limit::clone(&spec.limit),
            _ => with_numbers(&spec.limit, requests_per_unit, *burst)?,
        };
        let capacity = changed.capacity().0;
        if capacity > 0 && spec.cost > capacity {
            return fault(format!(
                "one request costs {} hits, so no request would pass; use at least this number",
                spec.cost
            ));
        }
        let Some(anchor) = anchor else { return Ok((changed, None)) };
        let Algorithm::FixedWindow(FixedWindow { window: Window::Calendar(calendar), .. }) =
            &mut changed.algorithm
        else {
            return fault("`anchor` is only allowed on a limit with `align: calendar`; remove it");
        };
        let (unit, zone) = (calendar.unit(), calendar.time_zone().to_owned());
        match parse_anchor(unit, anchor).and_then(|day| anchored_calendar(unit, &zone, day)) {
            Some(anchored) => *calendar = anchored,
            None => {
                return fault(
                    "`anchor` must be a day (1 to 31) for a month, or a date such as 04-01 for a year",
                );
            }
        }
        let (path, domain) = (self.tree.path_to(rule.node), self.domain_name(rule));
        let is_whole_path = template.entries.len() == path.len();
        let prefix =
            spec.identity_prefix(&self.secret, domain, None, &changed, &path, is_whole_path);
        Ok((changed, Some(prefix)))
    }

    fn check_numbers(&self, targeted: &[&Rule], entry: &OverrideEntry) -> Result<(), String> {
        if !matches!(entry.change, OverrideChange::Numbers { .. }) {
            return Ok(());
        }
        let mut names: Vec<&str> = Vec::new();
        let mut is_named = false;
        for rule in targeted {
            for at in (0..rule.limits.len()).filter(|at| names_limit(&entry.target, rule, *at)) {
                is_named = true;
                self.override_numbers(rule, at, &entry.change)
                    .map_err(|error| format!("{}: {error}", rule.path))?;
            }
            names.extend(rule.limits.iter().filter_map(|spec| spec.name.as_deref()));
            if entry.target.limit_name.is_none() && rule.limits.len() > 1 {
                return fault(format!(
                    "{} has several limits; name one of them as `limit_name`: {}",
                    rule.path,
                    names.join(", ")
                ));
            }
        }
        match is_named {
            true => Ok(()),
            false => fault(format!(
                "`limit_name` must be the name of a limit of `{}`; it has: {}",
                entry.target,
                names.join(", ")
            )),
        }
    }

    /// Returns the rules, without overrides, to which a target can apply.
    fn targeted_rules(&self, target: &OverrideTarget) -> Vec<&Rule> {
        let Some(domain) = self.tree.domain(&target.domain) else { return Vec::new() };
        let rules = self.rules_without_overrides();
        let keys = target.entries.iter().map(|(key, _)| key.as_bytes());
        if !target.entries.is_empty()
            && !self.tree.rule_keys.contains(&self.tree.hash_of_keys(domain.root, keys))
        {
            return Vec::new();
        }
        if !target.entries.is_empty() && !has_wildcard(target) {
            let entries: Vec<Entry<'_>> = target
                .entries
                .iter()
                .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
                .collect();
            let rule = self.rule_at_end(domain.root, &entries);
            let rule = rule.and_then(|rule| rules.get(self.rule_position(rule.id)));
            return rule.into_iter().filter(|rule| allows_rule(target, rule)).collect();
        }
        let pattern = |(key, value): &'_ (String, String)| (key.clone(), NamePattern::new(value));
        let patterns: Vec<(String, NamePattern)> = target.entries.iter().map(pattern).collect();
        let can_match = |(node, (key, pattern)): (&&TreeNode, &(String, NamePattern))| {
            // Two patterns may overlap. An override that matches no request has no effect.
            let may_overlap = match &node.value {
                ValueSpec::Exact(value) => pattern.matches(value.as_bytes()),
                ValueSpec::Any | ValueSpec::Pattern(_) => true,
            };
            *node.key == **key && may_overlap
        };
        let has_keys = |rule: &Rule| {
            let path = self.tree.path_to(rule.node);
            path.len() == patterns.len() && path.iter().zip(&patterns).all(can_match)
        };
        let is_targeted = |rule: &&Rule| {
            allows_rule(target, rule)
                && *self.domain_name(rule) == *target.domain
                && (patterns.is_empty() || has_keys(rule))
        };
        rules.iter().filter(is_targeted).collect()
    }

    fn rules_without_overrides(&self) -> &Arc<Vec<Rule>> {
        self.overrides.as_ref().map_or(&self.rules, |index| &index.loaded)
    }
}

/// Returns whether the numbers of an override are for the limit at this position: the limit that the
/// target names, or the only one.
fn names_limit(target: &OverrideTarget, rule: &Rule, at: usize) -> bool {
    match &target.limit_name {
        None => rule.limits.len() == 1,
        Some(name) => rule.limits[at].name.as_ref() == Some(name),
    }
}

impl Rule {
    /// Returns the overrides in force on this rule: those of numbers, then the scale, then the mode.
    pub fn overrides(&self) -> &[Arc<OverrideEntry>] {
        self.overrides.as_deref().map_or(&[], |overrides| &overrides.entries)
    }

    /// Returns whether an operator's numbers or mode apply instead of a request's limit.
    pub(crate) fn ignores_request_limits(&self) -> bool {
        self.overrides().iter().any(|entry| match entry.change {
            OverrideChange::Numbers { .. } => true,
            OverrideChange::Mode(mode) => mode != OverrideMode::Shadow,
            OverrideChange::Scale(_) => false,
        })
    }

    /// Returns whether an operator has put the rule into shadow mode.
    pub(crate) fn is_shadowed_by_operator(&self) -> bool {
        let shadow = OverrideChange::Mode(OverrideMode::Shadow);
        self.overrides().iter().any(|entry| entry.change == shadow)
    }

    /// Returns a request's limit, scaled as the limits of this rule are.
    pub(crate) fn scale_request_limit(&self, limit: &Override) -> Override {
        let scale = self.overrides().iter().find_map(|entry| match entry.change {
            OverrideChange::Scale(percent) => Some(percent),
            _ => None,
        });
        let requests_per_unit = scaled_number(limit.requests_per_unit, scale.unwrap_or(100));
        Override { requests_per_unit, ..*limit }
    }

    /// Replaces each limit. `edit` is told whether consumer classes divide it.
    fn edit_limits(&mut self, edit: impl Fn(&Limit, bool) -> Limit) {
        let change =
            |limit: &mut Arc<Limit>, bill_limit: &mut Option<Arc<Limit>>, has_tiers: bool| {
                *limit = Arc::new(edit(limit, has_tiers));
                *bill_limit = limit.bill_limit().map(Arc::new);
            };
        for LimitSpec { limit, bill_limit, tiers, .. } in Arc::make_mut(&mut self.limits) {
            change(limit, bill_limit, tiers.is_some());
            // A limit with consumer classes is enforced by the limits of its classes.
            if let Some(tiers) = tiers {
                let mut changed = TiersSpec::clone(tiers);
                for class in &mut changed.classes {
                    change(&mut class.limit, &mut class.bill_limit, true);
                }
                *tiers = Arc::new(changed);
            }
        }
    }
}
