//! Admission rule: decides whether a call is admitted, from the roles and verdicts of its checks.
//!
//! Not here: the decision on a single check (`algorithm`), the charges of a rejected call
//! ([`Check::applies_when_rejected`]).

use super::{Answer, Check, Role, Verdict};

/// Accumulator that decides whether a call is admitted, from the roles and verdicts of its checks.
///
/// A call is admitted if every `Required` check passes. If there are `Quota` checks, at least one
/// quota group must also pass all of its checks. `Shadow` checks have no effect. While the
/// verdict of an undecided check could still change the result, [`is_admitted`](Self::is_admitted)
/// and [`is_rejected`](Self::is_rejected) are both false.
///
/// ```
/// use tidegate::domain::{Admission, Role, Verdict};
///
/// let mut admission = Admission::default();
/// admission.add(Role::Quota(0), Some(Verdict::Refuse));
/// assert!(admission.is_rejected());
/// admission.add(Role::Quota(1), None);
/// assert!(!admission.is_rejected() && !admission.is_admitted());
/// admission.add(Role::Quota(2), Some(Verdict::Pass));
/// assert!(admission.is_admitted());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Admission {
    required_refused: bool,
    required_undecided: bool,
    /// Bit sets of the first 128 quota groups. They are stored inline to avoid a heap allocation.
    inline_quotas: QuotaBits,
    /// Bit sets of the quota groups from number 128 on, 128 groups per element.
    heap_quotas: Vec<QuotaBits>,
}

/// Bit sets of 128 consecutive quota groups, with one bit per group in each set.
#[derive(Clone, Copy, Debug, Default)]
struct QuotaBits {
    /// Groups that occur in the call.
    present: u128,
    /// Groups that have a refused check.
    refused: u128,
    /// Groups that have an undecided check.
    undecided: u128,
}

impl Admission {
    /// Creates an `Admission` from a call's checks and the store's answers, which must be in the
    /// same order. An answer without a verdict leaves its check undecided.
    pub fn from_answers(checks: &[Check<'_>], answers: &[Answer]) -> Admission {
        checks.iter().zip(answers).map(|(check, answer)| (check.role, answer.verdict())).collect()
    }

    /// Adds a check with the given role and verdict. A verdict of `None` means that the check is
    /// undecided.
    pub fn add(&mut self, role: Role, verdict: Option<Verdict>) {
        match (role, verdict) {
            (Role::Shadow, _) | (Role::Required, Some(Verdict::Pass)) => {}
            (Role::Required, Some(Verdict::Refuse)) => self.required_refused = true,
            (Role::Required, None) => self.required_undecided = true,
            (Role::Quota(number), verdict) => {
                let bit = quota_bit(number);
                let bits = self.quota_bits_mut(number);
                bits.present |= bit;
                match verdict {
                    Some(Verdict::Pass) => {}
                    Some(Verdict::Refuse) => bits.refused |= bit,
                    None => bits.undecided |= bit,
                }
            }
        }
    }

    /// Returns whether the call is certain to be admitted, regardless of the undecided checks.
    pub fn is_admitted(&self) -> bool {
        !self.required_refused
            && !self.required_undecided
            && (self.all_quota_bits().all(|bits| bits.present == 0) || self.any_quota_passes())
    }

    /// Returns whether the call is certain to be rejected, regardless of the undecided checks.
    pub fn is_rejected(&self) -> bool {
        self.required_refused
            || self.all_quota_bits().any(|bits| bits.present != 0)
                && self.all_quota_bits().all(|bits| bits.present & !bits.refused == 0)
    }

    /// Returns the role of an undecided check in a new call. The new call contains only the
    /// undecided checks. With the returned roles, it is admitted if and only if the original call
    /// is admitted, unless a decided check has already rejected the original call. A quota check
    /// becomes a shadow check if a quota group has already passed, or if its own group has already
    /// been refused.
    pub fn remaining_role(&self, role: Role) -> Role {
        match role {
            Role::Quota(number)
                if self.any_quota_passes()
                    || self.quota_bits(number).refused & quota_bit(number) != 0 =>
            {
                Role::Shadow
            }
            Role::Required | Role::Quota(_) | Role::Shadow => role,
        }
    }

    /// Returns whether at least one quota group has passed all of its checks.
    fn any_quota_passes(&self) -> bool {
        self.all_quota_bits().any(|bits| bits.present & !bits.refused & !bits.undecided != 0)
    }

    fn all_quota_bits(&self) -> impl Iterator<Item = &QuotaBits> {
        std::iter::once(&self.inline_quotas).chain(&self.heap_quotas)
    }

    /// Returns the [`QuotaBits`] that contain the quota group with the given number.
    fn quota_bits(&self, number: u16) -> QuotaBits {
        match usize::from(number / 128).checked_sub(1) {
            None => self.inline_quotas,
            Some(at) => self.heap_quotas.get(at).copied().unwrap_or_default(),
        }
    }

    fn quota_bits_mut(&mut self, number: u16) -> &mut QuotaBits {
        let Some(at) = usize::from(number / 128).checked_sub(1) else {
            return &mut self.inline_quotas;
        };
        if self.heap_quotas.len() <= at {
            self.heap_quotas.resize(at + 1, QuotaBits::default());
        }
        &mut self.heap_quotas[at]
    }
}

/// Returns the bit that represents a quota group in its [`QuotaBits`].
fn quota_bit(number: u16) -> u128 {
    1 << (number % 128)
}

impl FromIterator<(Role, Option<Verdict>)> for Admission {
    fn from_iter<I: IntoIterator<Item = (Role, Option<Verdict>)>>(checks: I) -> Admission {
        let mut admission = Admission::default();
        for (role, verdict) in checks {
            admission.add(role, verdict);
        }
        admission
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Checks = Vec<(Role, Option<Verdict>)>;

    /// Roles of the checks in the tested calls. The two quota groups are in different
    /// [`QuotaBits`].
    const ROLES: [Role; 4] = [Role::Required, Role::Quota(0), Role::Quota(300), Role::Shadow];
    const VERDICTS: [Option<Verdict>; 3] = [Some(Verdict::Pass), Some(Verdict::Refuse), None];

    /// Returns all calls of `length` checks, with every combination of roles and verdicts.
    fn all_calls(length: usize) -> Vec<Checks> {
        (0..length).fold(vec![Vec::new()], |calls, _| {
            let longer = |call: Checks| {
                let checks = ROLES.into_iter().flat_map(|role| VERDICTS.map(|v| (role, v)));
                checks.map(move |check| [call.clone(), vec![check]].concat())
            };
            calls.into_iter().flat_map(longer).collect()
        })
    }

    /// Returns one copy of the call for each combination of verdicts of its undecided checks.
    fn completions(call: &Checks) -> Vec<Checks> {
        call.iter().fold(vec![Vec::new()], |calls, (role, verdict)| {
            let possible = match verdict {
                Some(verdict) => vec![*verdict],
                None => vec![Verdict::Pass, Verdict::Refuse],
            };
            let longer = |call: Checks| {
                possible.iter().map(move |v| [call.clone(), vec![(*role, Some(*v))]].concat())
            };
            calls.into_iter().flat_map(longer).collect()
        })
    }

    /// Returns whether the documented admission rule admits a call. The call must have no undecided
    /// checks.
    fn is_admitted_by_rule(call: &Checks) -> bool {
        let passes = |(_, verdict): &&(Role, Option<Verdict>)| *verdict == Some(Verdict::Pass);
        let with = |wanted: Role| call.iter().filter(move |(role, _)| *role == wanted);
        let quotas: Vec<Role> = [Role::Quota(0), Role::Quota(300)]
            .into_iter()
            .filter(|quota| with(*quota).count() > 0)
            .collect();
        with(Role::Required).all(|check| passes(&check))
            && (quotas.is_empty()
                || quotas.iter().any(|quota| with(*quota).all(|check| passes(&check))))
    }

    #[test]
    fn a_call_is_admitted_or_rejected_iff_every_completion_is() {
        for call in (0..=5).flat_map(all_calls) {
            let results: Vec<bool> = completions(&call).iter().map(is_admitted_by_rule).collect();
            let admission: Admission = call.iter().copied().collect();
            assert_eq!(
                admission.is_admitted(),
                results.iter().all(|admitted| *admitted),
                "{call:?}"
            );
            assert_eq!(
                admission.is_rejected(),
                results.iter().all(|admitted| !admitted),
                "{call:?}"
            );
        }
    }

    #[test]
    fn each_of_many_quota_groups_is_decided_on_its_own() {
        for passing in 0..384 {
            let verdict =
                |group: u16| if group == passing { Verdict::Pass } else { Verdict::Refuse };
            let check = |group| (Role::Quota(group), Some(verdict(group)));
            let admission: Admission = (0..384).map(check).collect();
            assert!(admission.is_admitted(), "{passing}");
        }
    }

    #[test]
    fn the_undecided_checks_alone_give_the_result_of_the_whole_call() {
        for call in (1..=4).flat_map(all_calls) {
            let admission: Admission = call.iter().copied().collect();
            if admission.is_rejected() {
                continue;
            }
            for whole in completions(&call) {
                let rest = call.iter().zip(&whole).filter(|((_, known), _)| known.is_none());
                let rest =
                    rest.map(|(_, (role, verdict))| (admission.remaining_role(*role), *verdict));
                let rest: Admission = rest.collect();
                assert_eq!(rest.is_admitted(), is_admitted_by_rule(&whole), "{call:?} {whole:?}");
            }
        }
    }
}
