//! Soft limits: the marks of an admitted call, and the calls that bring a counter near its limit.
//!
//! Not here: reading `mark` and `log_near` (`policy`), encoding marks (`wire`), the log (`telemetry`).

use crate::domain::{Answers, Code, Decision, Fraction, Hits, Mark, NearEvent, Request, Verdict};
use crate::policy::{Checks, Matches};

/// Maximum number of marks of a call. Envoy accepts 100 headers of a request by default, so marks of
/// many limits must not crowd out those of the client.
const MARKS_MAX: usize = 64;

/// Returns the headers that a call carries to the upstream: those of limits that are used up before
/// those of limits that are near, then in file order, one for each name. Calls `on_near` for each
/// limit with `log_near` that this call has brought near.
///
/// A call that only global shadow mode lets pass is marked, too, because the upstream serves it.
///
/// Called only for policies with `mark` or `log_near`, so that other policies do not pay for it.
#[cold]
pub(super) fn find_marks<'p>(
    decision: &Decision<'_>,
    request: &Request<'_>,
    matches: &Matches<'p>,
    checks: &Checks<'_, 'p>,
    answers: &Answers,
    mut on_near: impl FnMut(&NearEvent<'_>),
) -> Vec<&'p Mark> {
    // Both allocate for marked calls only.
    let (mut over, mut near) = (Vec::new(), Vec::new());
    let rules = matches.found.iter().map(|found| found.rule());
    for ((rule, span), descriptor) in rules.zip(&checks.spans).zip(request.descriptors) {
        let Some(rule) = rule else { continue };
        for (at, check) in span.clone().zip(&checks.each[span.clone()]) {
            let (limit, name) = (rule.limit_position(checks.names[at]), checks.names[at]);
            let soft = rule.limits.get(limit).and_then(|limit| limit.soft.as_deref());
            let outcome = answers.each.get(at).and_then(|answer| answer.outcome());
            let (Some(soft), Some(outcome)) = (soft, outcome) else { continue };
            // Only a charge on the remote store has a record.
            let is_remote = outcome.taken.is_some();
            let share = if is_remote { Fraction::WHOLE } else { answers.local_share };
            let usable = share.of_hits(check.limit.available_when_unused());
            let used = Hits(usable.0.saturating_sub(outcome.available.0));
            let near_hits = soft.near_hits(usable);
            if outcome.verdict == Verdict::Refuse || outcome.available == Hits::ZERO {
                over.extend(&soft.over);
            } else if used >= near_hits {
                near.extend(&soft.near);
            }
            let before = Hits(used.0.saturating_sub(outcome.charged.0));
            if soft.log_near && before < near_hits && near_hits <= used {
                let entries = &rule.counter_entries(limit, descriptor.entries);
                let (rule, counter) = (rule.id, check.key);
                on_near(&NearEvent { rule, limit: name, counter, entries, used, usable });
            }
        }
    }
    let mut marks: Vec<&Mark> = Vec::new();
    let passes = decision.code == Code::Ok;
    for mark in over.into_iter().chain(near).filter(|_| passes) {
        if marks.len() < MARKS_MAX && marks.iter().all(|known| known.name != mark.name) {
            marks.push(mark);
        }
    }
    marks
}
