//! Notifies the observer of checks, refusals, and decisions.
//!
//! Not here: counting and logging these events (`telemetry`).

use super::descriptor_status::reported_outcome;
use super::limited_by::name_or_rule_path;
use super::{Decider, is_admitted, quota_roles};
use crate::domain::{
    Answer, Answers, Check, CheckEvent, Code, Decision, Descriptor, DetailedCheck, Hits, KeyEvent,
    LimitedBy, LossCause, LostBill, Observer, Op, Outcome, Request, Role, Source, Verdict,
    WaitPrecision,
};
use crate::policy::{Checks, DescriptorMatch, Matches, Policy, Rule};
use crate::store::Store;

impl<S: Store, O: Observer> Decider<S, O> {
    pub(super) fn notify<'p>(
        &self,
        policy: &Policy,
        request: &Request<'_>,
        matches: &Matches<'p>,
        checks: &Checks<'_, 'p>,
        answers: &Answers,
        decision: &Decision<'_>,
    ) {
        let admitted = is_admitted(decision);
        let passes = decision.code == Code::Ok;
        let mut any_refused = false;
        let descriptors = matches.found.iter().zip(&checks.spans).zip(request.descriptors);
        for ((found, span), descriptor) in descriptors {
            let rule = found.rule();
            if let DescriptorMatch::Unlimited(rule) = found {
                let event = unlimited_event(rule, descriptor, admitted);
                self.notify_check(&event, policy, request.domain, Some(rule), descriptor);
            }
            for at in span.clone() {
                let check = &checks.each[at];
                let Some(outcome) =
                    answers.each.get(at).and_then(|a| recorded_outcome(a, check, admitted))
                else {
                    continue;
                };
                if outcome.verdict == Verdict::Refuse {
                    any_refused = true;
                    let shadow = passes || check.role == Role::Shadow;
                    notify_key(rule, check, checks.names[at], descriptor, shadow, |key| {
                        self.observer.on_refusal(key);
                    });
                }
                let event = CheckEvent {
                    rule: rule.map(|rule| rule.id),
                    hits: check.cost(),
                    capacity: check.limit.capacity(),
                    outcome,
                    decided: matches!(answers.each.get(at), Some(Answer::Decided(_))),
                    shadow: rule.is_some_and(|rule| rule.shadow_mode),
                    admitted,
                    is_refund: check.is_refund(),
                    is_peek: matches!(check.op, Op::Peek { .. }),
                    lost_bill: find_lost_bill(check, descriptor, &outcome),
                    is_blocked: outcome.verdict == Verdict::Refuse && check.starts_block(),
                    source: decision.source,
                };
                self.notify_check(&event, policy, request.domain, rule, descriptor);
                if let Some(weight) = self.observer.sample_pass(&event) {
                    notify_key(rule, check, checks.names[at], descriptor, false, |key| {
                        self.observer.on_pass(key, &event, weight);
                    });
                }
            }
        }
        if checks.each.is_empty() {
            self.notify_without_limit(policy, request, matches);
        } else if decision.shadowed {
            self.observer.on_shadow_pass(decision.limited_by.as_ref(), decision.source);
        } else if passes && any_refused {
            let limit = find_shadow_limit(matches, checks, answers, self.modes.quota);
            limit.inspect(|limit| self.observer.on_shadow_pass(Some(limit), decision.source));
        }
        self.observer.on_decision(decision);
    }

    /// Notifies the observer of a call that matches no rule. Not inlined, because calls that meet a
    /// limit must not pay for it.
    #[cold]
    fn notify_without_limit(&self, policy: &Policy, request: &Request<'_>, matches: &Matches<'_>) {
        if matches.found.iter().all(|found| found.rule().is_none()) {
            let (reason, explain) =
                (policy.no_limit_reason(request), || policy.explain_no_limit(request));
            self.observer.on_unmatched(request, reason, &explain);
        }
    }

    fn notify_check(
        &self,
        event: &CheckEvent,
        policy: &Policy,
        domain: &str,
        rule: Option<&Rule>,
        descriptor: &Descriptor<'_>,
    ) {
        match rule {
            None => self.observer.on_override_check(event, domain),
            Some(rule) if rule.values_in_metrics => {
                let detailed_path = || policy.printed_path(rule, descriptor.entries);
                let detailed =
                    DetailedCheck { domain, rule_path: &rule.path, detailed_path: &detailed_path };
                self.observer.on_detailed_check(event, &detailed);
            }
            Some(_) => self.observer.on_check(event),
        }
    }
}

/// Calls `notify` with the counter of a check. Collects the counter's entries, so it is called only
/// for refused checks and for the few that the observer selects; the others do not incur the cost.
fn notify_key(
    rule: Option<&Rule>,
    check: &Check<'_>,
    name: &str,
    descriptor: &Descriptor<'_>,
    shadow: bool,
    notify: impl FnOnce(&KeyEvent<'_>),
) {
    let counter = check.key;
    let Some(rule) = rule else {
        let entries = descriptor.entries;
        return notify(&KeyEvent { rule: None, limit: 0, counter, entries, shadow });
    };
    let limit = rule.limit_position(name);
    let entries = rule.counter_entries(limit, descriptor.entries);
    let (rule, entries) = (Some(rule.id), &entries[..]);
    notify(&KeyEvent { rule, limit, counter, entries, shadow });
}

/// Returns the limit that would have rejected an admitted call if its rule were not in shadow mode;
/// `None` if there is none. A quota descriptor would have rejected the call only if no quota
/// descriptor passes. Called only for calls with a refused check.
fn find_shadow_limit<'p>(
    matches: &Matches<'p>,
    checks: &Checks<'_, 'p>,
    answers: &Answers,
    quota_mode: bool,
) -> Option<LimitedBy<'p>> {
    let (mut required, mut quota, mut any_quota_passes) = (None, None, false);
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        let is_quota = quota_roles::is_quota(found, quota_mode);
        let refused = span.clone().find_map(|at| {
            let outcome = answers.each.get(at)?.outcome()?;
            (outcome.verdict == Verdict::Refuse).then_some((at, outcome.retry_after))
        });
        any_quota_passes |= is_quota && refused.is_none();
        if let (Some((at, retry_after)), Some(rule)) = (refused, found.rule())
            && rule.shadow_mode
        {
            let name = name_or_rule_path(checks.names[at], Some(rule));
            let (rule, precision) = (Some(rule.id), WaitPrecision::AtLeast);
            let limit = LimitedBy { name, rule, retry_after, precision };
            (if is_quota { &mut quota } else { &mut required }).get_or_insert(limit);
        }
    }
    required.or(quota.filter(|_| !any_quota_passes))
}

/// Returns the outcome to record in the statistics for one check. A check that was not sent to the
/// store counts as passed without a charge. An unanswered check counts as passed if the call was
/// rejected, and is not recorded (`None`) if the call was admitted.
fn recorded_outcome(answer: &Answer, check: &Check<'_>, admitted: bool) -> Option<Outcome> {
    let unanswered = || (!admitted).then(|| Outcome::pass(check.limit.capacity()));
    reported_outcome(check, answer).or_else(unanswered)
}

/// Returns the hits of a bill that were not charged. Returns `None` if the check was charged in
/// full or is not a bill. A bill is a descriptor with its own `hits_addend` above 0.
fn find_lost_bill(
    check: &Check<'_>,
    descriptor: &Descriptor<'_>,
    outcome: &Outcome,
) -> Option<LostBill> {
    // A settle that is sent twice, or that of another caller's hold, loses nothing.
    if !descriptor.has_hits_addend || check.is_refund() || descriptor.hold.is_some() {
        return None;
    }
    let hits = Hits(check.cost().0.saturating_sub(outcome.charged.0));
    let cause = match check.charges_always() {
        true => LossCause::DebtBound,
        false => LossCause::Rejected,
    };
    (hits > Hits::ZERO).then_some(LostBill { hits, cause })
}

/// Returns the event for a descriptor that matches an unlimited rule. It reports a passing check
/// with infinite capacity.
fn unlimited_event(rule: &Rule, descriptor: &Descriptor<'_>, admitted: bool) -> CheckEvent {
    CheckEvent {
        rule: Some(rule.id),
        hits: descriptor.hits,
        capacity: Hits(u64::MAX),
        outcome: Outcome { charged: descriptor.hits, ..Outcome::pass(Hits(u64::MAX)) },
        decided: true,
        shadow: rule.shadow_mode,
        admitted,
        is_refund: descriptor.refund,
        is_peek: descriptor.hits == Hits::ZERO,
        lost_bill: None,
        is_blocked: false,
        source: Source::Policy,
    }
}
