//! Roles of quota checks, as envoyproxy/ratelimit decides them: a call is rejected if every quota
//! descriptor is over its limits.
//!
//! Not here: the admission rule itself (`domain::Admission`).

use super::{GlobalModes, matched_rule};
use crate::domain::{Check, Role};
use crate::policy::{Checks, DescriptorMatch, Matches};

/// Effect of a quota descriptor on whether the call's quota is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuotaEffect {
    /// The descriptor has no effect. It is unlimited, its limits are replaced (except in global
    /// quota mode), all of its checks are refunds, or its value has no consumer class.
    None,
    /// The descriptor always passes, because its rule is in shadow mode or, in global quota mode,
    /// because no limit applies to it.
    AlwaysPasses,
    /// The descriptor passes if all of its checks pass.
    DependsOnChecks,
}

/// Sets the roles of the checks of quota descriptors. In global quota mode, every descriptor is a
/// quota descriptor.
///
/// If one quota descriptor always passes, the checks of all quota descriptors that affect the
/// decision become shadow checks. Otherwise, if only one quota descriptor affects the decision, its
/// checks become required checks, which gives the same result.
pub(super) fn assign(checks: &mut Checks<'_, '_>, matches: &Matches<'_>, modes: GlobalModes) {
    let (mut dependent, mut any_passes, mut any_quota) = (0_u16, false, false);
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        if is_quota(found, modes) {
            any_quota = true;
            match quota_effect(found, &checks.each[span.clone()], modes) {
                QuotaEffect::None => {}
                QuotaEffect::AlwaysPasses => any_passes = true,
                QuotaEffect::DependsOnChecks => dependent += 1,
            }
        }
    }
    if !any_quota {
        return;
    }
    let mut number = 0;
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        if !is_quota(found, modes) {
            continue;
        }
        let role = match quota_effect(found, &checks.each[span.clone()], modes) {
            QuotaEffect::None => Role::Required,
            QuotaEffect::AlwaysPasses => Role::Shadow,
            QuotaEffect::DependsOnChecks if any_passes => Role::Shadow,
            QuotaEffect::DependsOnChecks if dependent == 1 => Role::Required,
            QuotaEffect::DependsOnChecks => {
                number += 1;
                Role::Quota(number - 1)
            }
        };
        for check in &mut checks.each[span.clone()] {
            check.role = role;
        }
    }
}

fn is_quota(found: &DescriptorMatch<'_>, modes: GlobalModes) -> bool {
    modes.quota || matched_rule(found).is_some_and(|rule| rule.quota_mode)
}

/// Returns the effect of a quota descriptor with the given checks.
fn quota_effect(
    found: &DescriptorMatch<'_>,
    checks: &[Check<'_>],
    modes: GlobalModes,
) -> QuotaEffect {
    match found {
        // envoyproxy/ratelimit does not distinguish a replaced descriptor from an unmatched one.
        DescriptorMatch::NoRule | DescriptorMatch::Replaced(_) if modes.quota => {
            QuotaEffect::AlwaysPasses
        }
        DescriptorMatch::NoRule | DescriptorMatch::Replaced(_) | DescriptorMatch::Unlimited(_) => {
            QuotaEffect::None
        }
        DescriptorMatch::Limited(_) | DescriptorMatch::Override(_)
            if checks.iter().all(Check::is_refund) =>
        {
            QuotaEffect::None
        }
        DescriptorMatch::Limited(rule) if rule.shadow_mode => QuotaEffect::AlwaysPasses,
        DescriptorMatch::Limited(_) | DescriptorMatch::Override(_) => QuotaEffect::DependsOnChecks,
    }
}
