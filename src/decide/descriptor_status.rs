//! Status of a descriptor: the limit that the response reports, and its remaining hits.
//!
//! Not here: the limit that rejects the whole call (`limited_by`), encoding the status (`wire`).

use std::ops::Range;

use super::limited_by::is_longer_wait;
use crate::domain::{
    Answer, Check, Code, Hits, Limit, Micros, Outcome, Status, StatusLimit, Verdict,
};
use crate::policy::{Checks, DescriptorMatch};

/// Value of `limit_remaining` in the status of an unlimited rule. The status of a limited rule
/// reports at most `u32::MAX - 1`.
pub const REMAINING_UNLIMITED: u32 = u32::MAX;

/// State of a counter as reported in the response, derived from one check.
#[derive(Clone, Copy, Debug)]
struct CounterState {
    verdict: Verdict,
    available: Hits,
    retry_after: Option<Micros>,
    reset_after: Option<Micros>,
}

/// Returns the status of a descriptor. `span` is the index range of its checks.
///
/// For a check that was not sent to the store, the status reports the last known number of
/// available hits or, if none is known, the full capacity of the limit.
pub(super) fn descriptor_status<'p>(
    found: &DescriptorMatch<'p>,
    is_quota: bool,
    span: Range<usize>,
    checks: &Checks<'_, 'p>,
    answers: &[Answer],
) -> Status<'p> {
    let shadow = found.rule().is_some_and(|rule| rule.shadow_mode);
    let mut status = status_without_limit(found, is_quota, span.is_empty());
    let mut strictest: Option<(usize, CounterState)> = None;
    for at in span {
        let Some(answer) = answers.get(at) else { continue };
        let Some(state) = CounterState::from_answer(&checks.each[at], answer) else { continue };
        if strictest.is_none_or(|(_, other)| state.is_stricter(&other)) {
            strictest = Some((at, state));
        }
    }
    if let Some((at, state)) = strictest {
        let limit = checks.each[at].limit;
        let (rate, name, capacity) = (limit.rate, checks.names[at], limit.capacity());
        status.shown = Some(StatusLimit { rate, name, capacity });
        state.write_to(&mut status, limit, shadow);
    }
    status
}

impl CounterState {
    /// Returns the counter state to report for a check, or `None` if the store did not answer.
    fn from_answer(check: &Check<'_>, answer: &Answer) -> Option<CounterState> {
        let not_asked = |available, reset_after| CounterState {
            verdict: Verdict::Pass,
            available,
            retry_after: None,
            reset_after,
        };
        match answer {
            Answer::Decided(Outcome { verdict, available, retry_after, reset_after, .. }) => {
                Some(CounterState {
                    verdict: *verdict,
                    available: *available,
                    retry_after: *retry_after,
                    reset_after: Some(*reset_after),
                })
            }
            Answer::LastKnown { available, reset_after } => {
                Some(not_asked(*available, *reset_after))
            }
            Answer::NotAsked => Some(not_asked(check.limit.capacity(), None)),
            Answer::Unanswered { .. } => None,
        }
    }

    /// Returns whether the status must report this counter rather than `other`: a refusal rather
    /// than a pass, the refusal with the longer wait, or the pass with fewer available hits. On a
    /// tie, returns false, so that the first check in file order is reported.
    fn is_stricter(&self, other: &CounterState) -> bool {
        match (self.verdict, other.verdict) {
            (Verdict::Refuse, Verdict::Pass) => true,
            (Verdict::Pass, Verdict::Refuse) => false,
            (Verdict::Refuse, Verdict::Refuse) => {
                is_longer_wait(self.retry_after, other.retry_after)
            }
            (Verdict::Pass, Verdict::Pass) => self.available < other.available,
        }
    }

    fn write_to(&self, status: &mut Status<'_>, limit: &Limit, shadow: bool) {
        let refused = self.verdict == Verdict::Refuse;
        status.code = if refused && !shadow { Code::OverLimit } else { Code::Ok };
        status.remaining = if refused {
            0
        } else {
            u32::try_from(self.available.0).unwrap_or(u32::MAX).min(REMAINING_UNLIMITED - 1)
        };
        status.reset = match (refused && !shadow, self.retry_after) {
            (false, _) => self.reset_after,
            (true, None) => limit.blocked_duration(self.reset_after.unwrap_or_default()),
            (true, wait) => wait,
        };
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
