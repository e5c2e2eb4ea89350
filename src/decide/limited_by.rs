//! Finds the limit that rejects a call, and the wait after which a retry passes.
//!
//! All required limits must pass, so the longest of their waits applies. At least one quota group
//! must pass, so the shortest wait among the groups applies. A group passes only if all of its
//! limits pass, so the wait of a group is the longest wait of its limits.
//!
//! Not here: waits of single checks (`algorithm`), sending the wait (`wire`).

use smallvec::SmallVec;

use crate::domain::{
    Answer, Answers, Check, CounterKey, LimitedBy, Micros, Op, RepeatedCounters, Role, Verdict,
    WaitPrecision,
};
use crate::policy::{Checks, Matches, Rule};

/// Time until all checks in a set would pass.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    /// Index and wait of the refused check with the longest wait; `None` if no check was refused. A
    /// wait of `None` means that waiting never helps.
    longest: Option<(usize, Option<Micros>)>,
    /// Whether the actual wait may be longer than the wait in `longest`.
    is_lower_bound: bool,
}

/// Returns the limit that rejected the call, or `None` if the store did not answer and no refusal
/// is known.
pub(super) fn find_rejecting_limit<'p>(
    matches: &Matches<'p>,
    checks: &Checks<'_, 'p>,
    answers: &Answers,
) -> Option<LimitedBy<'p>> {
    // Only checks that charge the counter: a retry takes their hits anew.
    let takes =
        checks.each.iter().filter(|check| matches!(check.op, Op::Take { .. } | Op::Hold { .. }));
    let takes: SmallVec<[CounterKey; 16]> = takes.map(|check| check.key).collect();
    let charged_twice = RepeatedCounters::from_keys(takes.iter().copied());
    let mut wait = Wait::default();
    let mut groups: SmallVec<[Wait; 4]> = SmallVec::new();
    for (at, (check, answer)) in checks.each.iter().zip(&answers.each).enumerate() {
        match check.role {
            Role::Required => wait.add(at, check, answer, &charged_twice),
            Role::Quota(number) => {
                let number = usize::from(number);
                // The numbers of a call are consecutive.
                groups.resize(groups.len().max(number + 1), Wait::default());
                groups[number].add(at, check, answer, &charged_twice);
            }
            Role::Shadow => {}
        }
    }
    let mut quotas: Option<Wait> = None;
    let (mut any_quota_passes, mut is_quota_open) = (false, false);
    for quota in groups {
        match quota.longest {
            None if quota.is_lower_bound => is_quota_open = true,
            None => any_quota_passes = true,
            Some((_, longest)) => {
                let shortest = quotas.and_then(|wait| wait.longest);
                if shortest.is_none_or(|(_, shortest)| is_longer_wait(shortest, longest)) {
                    quotas = Some(quota);
                }
            }
        }
    }
    if is_quota_open && !any_quota_passes {
        wait.is_lower_bound = true;
    } else if let Some(quota) = quotas.filter(|_| !any_quota_passes) {
        wait.merge(&quota);
    }
    let (at, retry_after) = wait.longest?;
    let found = matches.found.iter().zip(&checks.spans).find(|(_, span)| span.contains(&at));
    let rule = found.and_then(|(found, _)| found.rule());
    // Nothing is longer than a wait that never ends.
    let precision = if wait.is_lower_bound && retry_after.is_some() {
        WaitPrecision::AtLeast
    } else {
        WaitPrecision::Exact
    };
    Some(LimitedBy {
        name: name_or_rule_path(checks.names[at], rule),
        rule: rule.map(|rule| rule.id),
        retry_after,
        precision,
    })
}

impl Wait {
    fn add(
        &mut self,
        at: usize,
        check: &Check<'_>,
        answer: &Answer,
        charged_twice: &RepeatedCounters,
    ) {
        match answer {
            Answer::Decided(outcome) if outcome.verdict == Verdict::Refuse => {
                let retry_after = outcome.retry_after;
                if self.longest.is_none_or(|(_, longest)| is_longer_wait(retry_after, longest)) {
                    self.longest = Some((at, retry_after));
                }
                // A retry takes the hits of the other check anew.
                self.is_lower_bound |= charged_twice.contains(&check.key);
            }
            // The rejected call has used up what the check needs to pass again.
            Answer::Decided(outcome) => {
                self.is_lower_bound |=
                    outcome.charged.0 > 0 && outcome.available < check.hits_needed();
            }
            Answer::NotAsked | Answer::LastKnown { .. } | Answer::Unanswered { .. } => {
                self.is_lower_bound |= !check.comes_first();
            }
        }
    }

    /// Extends the wait until the checks of `other` would pass as well.
    fn merge(&mut self, other: &Wait) {
        self.is_lower_bound |= other.is_lower_bound;
        let Some((at, retry_after)) = other.longest else { return };
        let is_first = |(first, longest): (usize, Option<Micros>)| {
            is_longer_wait(retry_after, longest) || retry_after == longest && at < first
        };
        if self.longest.is_none_or(is_first) {
            self.longest = other.longest;
        }
    }
}

/// Returns whether wait `a` is longer than wait `b`. `None` means that waiting never helps, and
/// counts as longer than any other wait.
pub(super) fn is_longer_wait(a: Option<Micros>, b: Option<Micros>) -> bool {
    match (a, b) {
        (None, None) | (Some(_), None) => false,
        (None, Some(_)) => true,
        (Some(a), Some(b)) => a > b,
    }
}

/// Returns the name of the limit or, if the limit has no name, the path of its rule. Returns an
/// empty string for a request override, which has no name and no rule.
pub(super) fn name_or_rule_path<'p>(name: &'p str, rule: Option<&'p Rule>) -> &'p str {
    match rule {
        Some(rule) if name.is_empty() => &rule.path,
        Some(_) | None => name,
    }
}
