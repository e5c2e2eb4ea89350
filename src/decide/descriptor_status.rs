//! Status of a descriptor: the limit that the response reports, and its remaining hits.
//!
//! Not here: the limit that rejects the whole call (`limited_by`), encoding the status (`wire`).

use std::ops::Range;

use super::limited_by::is_longer_wait;
use crate::domain::{Answer, Check, Code, Outcome, Status, StatusLimit, Verdict};
use crate::policy::{Checks, DescriptorMatch};

/// Value of `limit_remaining` in the status of an unlimited rule. The status of a limited rule
/// reports at most `u32::MAX - 1`.
pub const REMAINING_UNLIMITED: u32 = u32::MAX;

/// Returns the status of a descriptor. `span` is the index range of its checks.
pub(super) fn descriptor_status<'p>(
    found: &DescriptorMatch<'p>,
    is_quota: bool,
    span: Range<usize>,
    checks: &Checks<'_, 'p>,
    answers: &[Answer],
) -> Status<'p> {
    let shadow = found.rule().is_some_and(|rule| rule.shadow_mode);
    let mut status = status_without_limit(found, is_quota, span.is_empty());
    let mut strictest: Option<(usize, Outcome)> = None;
    for at in span {
        let Some(answer) = answers.get(at) else { continue };
        let Some(outcome) = reported_outcome(&checks.each[at], answer) else { continue };
        if strictest.is_none_or(|(_, other)| is_stricter(&outcome, &other)) {
            strictest = Some((at, outcome));
        }
    }
    let Some((at, outcome)) = strictest else { return status };
    let limit = checks.each[at].limit;
    let (rate, name, capacity) = (limit.rate, checks.names[at], limit.capacity());
    status.shown = Some(StatusLimit { rate, name, capacity });
    status.remaining = match outcome.verdict {
        Verdict::Pass => {
            u32::try_from(outcome.available.0).unwrap_or(u32::MAX).min(REMAINING_UNLIMITED - 1)
        }
        Verdict::Refuse => 0,
    };
    if outcome.verdict == Verdict::Refuse && !shadow {
        status.code = Code::OverLimit;
        let is_blocked = || limit.blocked_duration(outcome.reset_after);
        status.reset = outcome.retry_after.or_else(is_blocked);
    } else {
        status.reset = match answers[at] {
            Answer::LastKnown { reset_after, .. } => reset_after,
            Answer::NotAsked => None,
            Answer::Decided(_) | Answer::Unanswered { .. } => Some(outcome.reset_after),
        };
    }
    status
}

/// Returns the outcome to report for a check. For one that was not sent to the store, it is a pass with
/// the last known number of available hits or, if none is known, with the full capacity of the limit.
/// Returns `None` if the store did not answer.
pub(super) fn reported_outcome(check: &Check<'_>, answer: &Answer) -> Option<Outcome> {
    match answer {
        Answer::Decided(outcome) => Some(*outcome),
        Answer::LastKnown { available, .. } => Some(Outcome::pass(*available)),
        Answer::NotAsked => Some(Outcome::pass(check.limit.capacity())),
        Answer::Unanswered { .. } => None,
    }
}

/// Returns whether the status must report `outcome` rather than `other`: a refusal rather than a pass,
/// the refusal with the longer wait, or the pass with fewer available hits. On a tie, returns false, so
/// that the first check in file order is reported.
fn is_stricter(outcome: &Outcome, other: &Outcome) -> bool {
    match (outcome.verdict, other.verdict) {
        (Verdict::Refuse, Verdict::Pass) => true,
        (Verdict::Pass, Verdict::Refuse) => false,
        (Verdict::Refuse, Verdict::Refuse) => {
            is_longer_wait(outcome.retry_after, other.retry_after)
        }
        (Verdict::Pass, Verdict::Pass) => outcome.available < other.available,
    }
}

/// Returns the status of a descriptor for which no limit is reported. `has_no_check` is true if the
/// descriptor has no checks.
fn status_without_limit<'p>(
    found: &DescriptorMatch<'p>,
    is_quota: bool,
    has_no_check: bool,
) -> Status<'p> {
    let is_unlimited = match found {
        DescriptorMatch::Unlimited(_) => true,
        DescriptorMatch::Limited(_) => has_no_check,
        DescriptorMatch::NoRule
        | DescriptorMatch::Replaced(_)
        | DescriptorMatch::Overridden(_)
        | DescriptorMatch::Override(_) => false,
    };
    Status {
        code: Code::Ok,
        shown: None,
        remaining: if is_unlimited { REMAINING_UNLIMITED } else { 0 },
        reset: None,
        rule: found.rule().map(|rule| rule.id),
        quota: is_quota,
        group_refused: false,
    }
}
