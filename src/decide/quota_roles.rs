//! Roles of quota checks, as envoyproxy/ratelimit decides them: a call is rejected if every quota
//! descriptor is over its limits.
//!
//! Not here: the admission rule itself (`domain::Admission`).

use super::{GlobalModes, matched_rule};
use crate::domain::{Check, Role};
use crate::policy::{Checks, DescriptorMatch, Matches};

/// Effect of a quota descriptor on whether the call's quota is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    /// The descriptor has no effect. It is unlimited, its limits are replaced (except in global
    /// quota mode), all of its checks are refunds, or its value has no consumer class.
    None,
    /// The descriptor always passes, because its rule is in shadow mode or, in global quota mode,
    /// because no limit applies to it.
    Passes,
    /// The descriptor passes if all of its checks pass.
    Decided,
}

/// Sets the roles of the checks of quota descriptors. In global quota mode, every descriptor is a
/// quota descriptor.
///
/// If one quota descriptor always passes, the checks of all quota descriptors that affect the
/// decision become shadow checks. Otherwise, if only one quota descriptor affects the decision, its
/// checks become required checks, which gives the same result.
pub(super) fn assign(checks: &mut Checks<'_, '_>, matches: &Matches<'_>, modes: GlobalModes) {
    let (mut decided, mut one_passes, mut any_quota) = (0_u8, false, false);
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        if is_quota(found, modes) {
            any_quota = true;
            match membership(found, &checks.each[span.clone()], modes) {
                Membership::None => {}
                Membership::Passes => one_passes = true,
                Membership::Decided => decided += 1,
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
        let role = match membership(found, &checks.each[span.clone()], modes) {
            Membership::None => Role::Required,
            Membership::Passes => Role::Shadow,
            Membership::Decided if one_passes => Role::Shadow,
            Membership::Decided if decided == 1 => Role::Required,
            Membership::Decided => {
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
fn membership(found: &DescriptorMatch<'_>, checks: &[Check<'_>], modes: GlobalModes) -> Membership {
    match found {
        // envoyproxy/ratelimit does not distinguish a replaced descriptor from an unmatched one.
        DescriptorMatch::NoRule | DescriptorMatch::Replaced(_) if modes.quota => Membership::Passes,
        DescriptorMatch::NoRule | DescriptorMatch::Replaced(_) | DescriptorMatch::Unlimited(_) => {
            Membership::None
        }
        DescriptorMatch::Limited(_) | DescriptorMatch::Override(_)
            if checks.iter().all(Check::is_refund) =>
        {
            Membership::None
        }
        DescriptorMatch::Limited(rule) if rule.shadow_mode => Membership::Passes,
        DescriptorMatch::Limited(_) | DescriptorMatch::Override(_) => Membership::Decided,
    }
}
