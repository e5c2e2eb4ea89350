//! The admission rule: decides from the roles and verdicts of its checks whether a call is
//! admitted.
//!
//! Not here: the decision on a single check (`algorithm`), the charges of a rejected call
//! ([`Check::applies_when_rejected`]).

use super::{Answer, Check, Role, Verdict};

/// Decides whether a call is admitted, from the roles and verdicts of its checks.
///
/// A call is admitted if every `Required` check passes and, if there are `Quota` checks, at least
/// one `Quota` check passes. `Shadow` checks have no effect. While the verdict of an undecided
/// check could still change the result, [`is_admitted`](Self::is_admitted) and
/// [`is_rejected`](Self::is_rejected) are both false.
///
/// ```
/// use tidegate::domain::{Admission, Role, Verdict};
///
/// let mut admission = Admission::default();
/// admission.add(Role::Quota, Some(Verdict::Refuse));
/// assert!(admission.is_rejected());
/// admission.add(Role::Quota, None);
/// assert!(!admission.is_rejected() && !admission.is_admitted());
/// admission.add(Role::Quota, Some(Verdict::Pass));
/// assert!(admission.is_admitted());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    required: Verdicts,
    quota: Verdicts,
}

/// Set of the verdicts that the checks of one role have received.
#[derive(Clone, Copy, Debug, Default)]
struct Verdicts {
    passed: bool,
    refused: bool,
    undecided: bool,
}

impl Admission {
    /// Creates the admission from a call's checks and the store's answers, which must be in the
    /// same order. A check without an outcome counts as undecided.
    pub fn from_answers(checks: &[Check<'_>], answers: &[Answer]) -> Admission {
        checks.iter().zip(answers).map(|(check, answer)| (check.role, answer.verdict())).collect()
    }

    /// Adds a check with its role and verdict. `None` means that the check is undecided.
    pub fn add(&mut self, role: Role, verdict: Option<Verdict>) {
        let verdicts = match role {
            Role::Required => &mut self.required,
            Role::Quota => &mut self.quota,
            Role::Shadow => return,
        };
        match verdict {
            Some(Verdict::Pass) => verdicts.passed = true,
            Some(Verdict::Refuse) => verdicts.refused = true,
            None => verdicts.undecided = true,
        }
    }

    /// Returns whether the call is admitted and no verdict on an undecided check can change that.
    pub fn is_admitted(&self) -> bool {
        let Admission { required, quota } = self;
        let no_quota = !quota.refused && !quota.undecided;
        !required.refused && !required.undecided && (quota.passed || no_quota)
    }

    /// Returns whether the call is rejected and no verdict on an undecided check can change that.
    pub fn is_rejected(&self) -> bool {
        let Admission { required, quota } = self;
        required.refused || quota.refused && !quota.passed && !quota.undecided
    }
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

    const ROLES: [Role; 3] = [Role::Required, Role::Quota, Role::Shadow];
    const VERDICTS: [Option<Verdict>; 3] = [Some(Verdict::Pass), Some(Verdict::Refuse), None];

    /// Returns every possible call of `length` checks, over all roles and verdicts.
    fn all_calls(length: usize) -> Vec<Checks> {
        (0..length).fold(vec![Vec::new()], |calls, _| {
            let longer = |call: Checks| {
                let checks = ROLES.into_iter().flat_map(|role| VERDICTS.map(|v| (role, v)));
                checks.map(move |check| [call.clone(), vec![check]].concat())
            };
            calls.into_iter().flat_map(longer).collect()
        })
    }

    /// Returns copies of the call in which every undecided check is decided, in all possible ways.
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

    /// Admission rule as the documentation states it, for calls without undecided checks.
    fn reference(call: &Checks) -> bool {
        let passes = |(_, verdict): &&(Role, Option<Verdict>)| *verdict == Some(Verdict::Pass);
        let with = |wanted: Role| call.iter().filter(move |(role, _)| *role == wanted);
        with(Role::Required).all(|check| passes(&check))
            && (with(Role::Quota).count() == 0 || with(Role::Quota).any(|check| passes(&check)))
    }

    #[test]
    fn a_call_is_admitted_or_rejected_iff_every_completion_is() {
        for call in (0..=5).flat_map(all_calls) {
            let results: Vec<bool> = completions(&call).iter().map(reference).collect();
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
}
