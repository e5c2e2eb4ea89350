//! Assigns roles to the checks of quota descriptors. A call is rejected if every quota group is
//! over one of its limits.
//!
//! As in envoyproxy/ratelimit, each quota descriptor forms a separate group, unless the domain has
//! a `quota_group`, a list of entry keys. In that case, descriptors with the same values for these
//! keys form a group.
//!
//! Not here: the admission rule itself (`domain::Admission`).

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::domain::{Check, Code, Descriptor, Op, Request, Role, Status};
use crate::policy::{Checks, DescriptorMatch, Matches};

/// Effect of a quota descriptor on its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuotaEffect {
    /// The descriptor belongs to no quota group, because it is unlimited, it has only refunds and settles, its
    /// value has no consumer class, or rules of other descriptors replace its limits. In global
    /// quota mode, the effect of replaced limits is [`AlwaysPasses`](Self::AlwaysPasses) instead.
    None,
    /// The descriptor always passes, because its rule is in shadow mode or, in global quota mode,
    /// because no rule matches it or rules of other descriptors replace its limits.
    AlwaysPasses,
    /// The descriptor passes if all of its checks pass.
    DependsOnChecks,
}

/// Groups of a call's quota descriptors.
#[derive(Debug, Default)]
pub(super) struct QuotaGroups {
    /// For each descriptor, the index of its group in `depends_on_checks`; `None` if the descriptor
    /// is in no group. Empty if the call has no quota descriptors.
    descriptor_groups: SmallVec<[Option<usize>; 8]>,
    /// For each group, whether its result depends on checks; `false` means that the group always
    /// passes. Groups are in the order of their first descriptors.
    depends_on_checks: SmallVec<[bool; 8]>,
}

/// Sets the roles of the checks of quota descriptors, and returns their groups. In global
/// `quota_mode`, every descriptor is a quota descriptor.
///
/// If one group always passes, the checks of all groups become shadow checks. Otherwise, if there
/// is only one group, its checks become required checks, because this group must pass.
pub(super) fn assign_roles(
    checks: &mut Checks<'_, '_>,
    matches: &Matches<'_>,
    request: &Request<'_>,
    quota_mode: bool,
) -> QuotaGroups {
    if !matches.found.iter().any(|found| is_quota(found, quota_mode)) {
        return QuotaGroups::default();
    }
    let groups = find_groups(checks, matches, request, quota_mode);
    let any_passes = groups.depends_on_checks.iter().any(|depends| !depends);
    let is_single = groups.depends_on_checks.len() == 1;
    for (at, (found, span)) in matches.found.iter().zip(&checks.spans).enumerate() {
        if !is_quota(found, quota_mode) {
            continue;
        }
        let each = &mut checks.each[span.clone()];
        let role = match (quota_effect(found, each, quota_mode), groups.descriptor_groups[at]) {
            (QuotaEffect::None, _) => Role::Required,
            (QuotaEffect::AlwaysPasses, _) => Role::Shadow,
            (QuotaEffect::DependsOnChecks, _) if any_passes => Role::Shadow,
            (QuotaEffect::DependsOnChecks, Some(group)) if !is_single => {
                // Each group has a descriptor, and a call has at most 2,048.
                Role::Quota(u16::try_from(group).unwrap_or(u16::MAX))
            }
            (QuotaEffect::DependsOnChecks, _) => Role::Required,
        };
        for check in each.iter_mut().filter(|check| !matches!(check.op, Op::Settle { .. })) {
            // No quota rejects a call alone.
            (check.role, check.may_block) = (role, false);
        }
    }
    groups
}

impl QuotaGroups {
    /// Sets `group_refused` in the statuses of all descriptors whose group is over a limit.
    pub(super) fn mark_refused(&self, statuses: &mut [Status<'_>]) {
        // Without groups of several descriptors, the codes already say everything.
        if self.depends_on_checks.len() == self.descriptor_groups.iter().flatten().count() {
            return;
        }
        let mut refused: SmallVec<[bool; 8]> =
            SmallVec::from_elem(false, self.depends_on_checks.len());
        for (group, status) in self.descriptor_groups.iter().zip(statuses.iter()) {
            if let Some(group) = group {
                refused[*group] |= status.code == Code::OverLimit;
            }
        }
        for (group, status) in self.descriptor_groups.iter().zip(statuses) {
            status.group_refused = group.is_some_and(|group| refused[group]);
        }
    }
}

fn find_groups(
    checks: &Checks<'_, '_>,
    matches: &Matches<'_>,
    request: &Request<'_>,
    quota_mode: bool,
) -> QuotaGroups {
    let mut groups = QuotaGroups::default();
    // Allocates only if the domain has a `quota_group`. Comparing all descriptors with each other
    // instead would take time quadratic in their number.
    let mut known: HashMap<GroupKey<'_>, usize> = HashMap::new();
    let descriptors = matches.found.iter().zip(&checks.spans).zip(request.descriptors);
    for ((found, span), descriptor) in descriptors {
        let effect = match is_quota(found, quota_mode) {
            true => quota_effect(found, &checks.each[span.clone()], quota_mode),
            false => QuotaEffect::None,
        };
        groups.descriptor_groups.push(if effect == QuotaEffect::None {
            None
        } else {
            let next = groups.depends_on_checks.len();
            let group = match group_key(matches.quota_group(), descriptor) {
                Some(key) => *known.entry(key).or_insert(next),
                None => next,
            };
            if group == next {
                groups.depends_on_checks.push(false);
            }
            groups.depends_on_checks[group] |= effect == QuotaEffect::DependsOnChecks;
            Some(group)
        });
    }
    groups
}

/// Values of the entries that identify a group; `None` for an entry that the descriptor lacks.
type GroupKey<'a> = SmallVec<[Option<&'a [u8]>; 2]>;

/// Returns the values of the entries that identify the descriptor's group. If an entry occurs more
/// than once, its first value is used. Returns `None` if the descriptor has none of the keys and
/// therefore forms a separate group.
fn group_key<'a>(keys: &[Box<str>], descriptor: &Descriptor<'a>) -> Option<GroupKey<'a>> {
    let value = |key: &str| {
        descriptor.entries.iter().find(|entry| entry.key == key.as_bytes()).map(|entry| entry.value)
    };
    let values: GroupKey<'a> = keys.iter().map(|key| value(key)).collect();
    values.iter().any(Option::is_some).then_some(values)
}

/// Returns whether a descriptor is a quota descriptor: because of its rule, or because global quota
/// mode is on.
pub(super) fn is_quota(found: &DescriptorMatch<'_>, quota_mode: bool) -> bool {
    quota_mode || found.rule().is_some_and(|rule| rule.quota_mode)
}

/// Returns the effect of a quota descriptor with the given checks.
fn quota_effect(
    found: &DescriptorMatch<'_>,
    checks: &[Check<'_>],
    quota_mode: bool,
) -> QuotaEffect {
    match found {
        // envoyproxy/ratelimit does not distinguish a replaced descriptor from an unmatched one.
        DescriptorMatch::NoRule | DescriptorMatch::Replaced(_) if quota_mode => {
            QuotaEffect::AlwaysPasses
        }
        DescriptorMatch::NoRule | DescriptorMatch::Replaced(_) | DescriptorMatch::Unlimited(_) => {
            QuotaEffect::None
        }
        DescriptorMatch::Limited(_)
        | DescriptorMatch::Overridden(_)
        | DescriptorMatch::Override(_)
            if checks.iter().all(Check::comes_first) =>
        {
            QuotaEffect::None
        }
        DescriptorMatch::Limited(rule) | DescriptorMatch::Overridden(rule) if rule.shadow_mode => {
            QuotaEffect::AlwaysPasses
        }
        DescriptorMatch::Limited(_)
        | DescriptorMatch::Overridden(_)
        | DescriptorMatch::Override(_) => QuotaEffect::DependsOnChecks,
    }
}
