//! Decides requests: matches the policy, applies the checks to the store, and combines the
//! outcomes.
//!
//! Generic over the store. The store call is the only await point of a decision.
//!
//! Not here: the wire format (`wire`), policy files (`policy`), the arithmetic of limits
//! (`algorithm`), the clock (`clock`).

mod dry_run;
mod generated_holder;
mod inspect_counters;
mod observe;

pub use dry_run::{DryRun, DryRunLimit};
pub use inspect_counters::{CounterSnapshot, CounterSnapshots};

use std::sync::Arc;
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};

use crate::decide::generated_holder::{GeneratedHolder, HolderGenerator};
use crate::domain::{
    Accounting, Admission, Algorithm, Answer, Answers, Call, Check, Code, Decision, LimitedBy,
    Micros, Observer, Op, Outcome, Request, Role, Source, Status, StatusLimit, Verdict,
};
use crate::policy::{Checks, DescriptorMatch, Matches, Policy, Rule};
use crate::store::Store;

/// `limit_remaining` in the status of an unlimited rule.
pub const REMAINING_UNLIMITED: u32 = u32::MAX;

/// Global modes, which apply to all rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modes {
    /// Whether to answer OK regardless of the decision. Limits are charged as usual.
    pub shadow: bool,
    /// Whether to treat every descriptor as a quota descriptor.
    pub quota: bool,
}

/// Error: the store did not answer in time, and no fallback decided the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

/// Decides requests under the current policy.
#[derive(Debug)]
pub struct Decider<S, O> {
    policy: ArcSwap<Policy>,
    store: S,
    observer: O,
    modes: Modes,
    holders: HolderGenerator,
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// Creates a decider that starts with `policy`.
    pub fn new(policy: Arc<Policy>, store: S, observer: O, modes: Modes) -> Self {
        let holders = HolderGenerator::default();
        Decider { policy: ArcSwap::new(policy), store, observer, modes, holders }
    }

    /// Returns the active policy. A request loads the policy once, so that a reload never affects
    /// it halfway.
    pub fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Replaces the active policy. Requests in progress finish under the previous one.
    pub fn replace_policy(&self, policy: Arc<Policy>) {
        self.policy.store(policy);
    }

    /// Returns the store of all counters.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the observer that is notified of decisions.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Decides whether a request may pass.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if the store did not answer and no fallback decided the call.
    pub async fn decide<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<Decision<'p>, Unavailable> {
        self.decide_by(policy, request, now, None).await
    }

    /// Decides whether a request may pass, for a caller that stops waiting at `deadline`.
    ///
    /// # Errors
    ///
    /// As [`decide`](Self::decide).
    pub async fn decide_by<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
        deadline: Option<Instant>,
    ) -> Result<Decision<'p>, Unavailable> {
        let matches = policy.find(request);
        let mut checks = policy.checks(request, &matches);
        assign_quota_roles(&mut checks, &matches, self.modes);
        let holder = self.assign_holder(policy, &mut checks);
        let answers = self.apply(&checks.each, matches.accounting, now, deadline).await;
        let mut decision = combine(&matches, &checks, &answers, self.modes)?;
        if is_admitted(&decision) {
            let holder = holder.filter(|holder| holder.took_slot(&checks.each, &answers.each));
            decision.slot = holder.map(|holder| holder.token);
        }
        self.notify(request, &matches, &checks, &answers, &decision);
        Ok(decision)
    }

    /// Applies checks to the store. Skips the store if there are no checks.
    async fn apply(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        now: Micros,
        deadline: Option<Instant>,
    ) -> Answers {
        if checks.is_empty() {
            return Answers { each: Vec::new(), source: Source::Policy };
        }
        self.store.apply(&Call { checks, accounting, now, deadline }).await
    }

    /// Generates a holder for concurrency checks whose caller named none. All checks of the call
    /// share the generated holder.
    fn assign_holder(
        &self,
        policy: &Policy,
        checks: &mut Checks<'_, '_>,
    ) -> Option<GeneratedHolder> {
        let mut generated = None;
        for check in &mut checks.each {
            if check.holder.is_some() || !matches!(check.limit.algorithm, Algorithm::Concurrency(_))
            {
                continue;
            }
            match check.op {
                Op::Peek => {}
                Op::Refund { .. } => self.observer.release_without_holder(),
                Op::Take { .. } => {
                    let holder: &GeneratedHolder =
                        generated.get_or_insert_with(|| self.holders.generate(policy));
                    check.holder = Some(holder.holder);
                }
            }
        }
        generated
    }
}

/// Returns whether a decision admits the call regardless of global shadow mode.
fn is_admitted(decision: &Decision<'_>) -> bool {
    decision.code == Code::Ok && !decision.shadowed
}

fn matched_rule<'p>(found: &DescriptorMatch<'p>) -> Option<&'p Rule> {
    match found {
        DescriptorMatch::Replaced(rule)
        | DescriptorMatch::Unlimited(rule)
        | DescriptorMatch::Limited(rule) => Some(rule),
        DescriptorMatch::NoRule | DescriptorMatch::Override(_) => None,
    }
}

/// Sets the roles of quota checks. In global quota mode, every descriptor is a quota descriptor.
///
/// If a quota descriptor cannot refuse (it is shadowed, unlimited, replaced or, in global quota
/// mode, unmatched), the quota group always passes, so the checks of the others become shadow
/// checks.
fn assign_quota_roles(checks: &mut Checks<'_, '_>, matches: &Matches<'_>, modes: Modes) {
    let is_quota = |found: &DescriptorMatch<'_>| {
        modes.quota || matched_rule(found).is_some_and(|rule| rule.quota_mode)
    };
    let quota_always_passes = matches.found.iter().zip(&checks.spans).any(|(found, span)| {
        is_quota(found)
            && match found {
                DescriptorMatch::NoRule
                | DescriptorMatch::Replaced(_)
                | DescriptorMatch::Unlimited(_) => true,
                // No checks: the value has no consumer class and is therefore not limited.
                DescriptorMatch::Limited(rule) => rule.shadow_mode || span.is_empty(),
                DescriptorMatch::Override(_) => false,
            }
    });
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        if !is_quota(found) {
            continue;
        }
        for check in &mut checks.each[span.clone()] {
            if check.role != Role::Shadow {
                check.role = if quota_always_passes { Role::Shadow } else { Role::Quota };
            }
        }
    }
}

/// Combines the outcomes into a decision, as docs/POLICY.md describes admission and statuses.
fn combine<'p>(
    matches: &Matches<'p>,
    checks: &Checks<'_, 'p>,
    answers: &Answers,
    modes: Modes,
) -> Result<Decision<'p>, Unavailable> {
    let is_admitted = admits(&checks.each, &answers.each)?;
    let mut statuses = Vec::with_capacity(matches.found.len());
    let mut limited_by: Option<LimitedBy<'p>> = None;
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        let rule = matched_rule(found);
        let shadow = rule.is_some_and(|rule| rule.shadow_mode);
        let mut strictest: Option<(usize, &Outcome)> = None;
        for at in span.clone() {
            let Some(outcome) = answers.each.get(at).and_then(Answer::outcome) else { continue };
            if strictest.is_none_or(|(_, other)| is_stricter(outcome, other)) {
                strictest = Some((at, outcome));
            }
            if !is_admitted && outcome.verdict == Verdict::Refuse && !shadow {
                let candidate = LimitedBy {
                    name: own_name_or_path(checks.names[at], rule),
                    rule: rule.map(|rule| rule.id),
                    retry_after: outcome.retry_after,
                };
                if limited_by.is_none_or(|by| is_longer(candidate.retry_after, by.retry_after)) {
                    limited_by = Some(candidate);
                }
            }
        }
        let mut status = status_without_limit(found, span.is_empty());
        if let Some((at, outcome)) = strictest {
            fill_status(&mut status, &checks.each[at], checks.names[at], outcome, shadow);
        }
        statuses.push(status);
    }
    let shadowed = modes.shadow && !is_admitted;
    let code = if is_admitted || shadowed { Code::Ok } else { Code::OverLimit };
    Ok(Decision {
        code,
        statuses,
        limited_by,
        source: answers.source,
        shadowed,
        domain_known: matches.domain_known(),
        slot: None,
    })
}

/// Returns the name of a limit, or the path of its rule if the limit is unnamed. Empty for a
/// request override, which has neither.
fn own_name_or_path<'p>(name: &'p str, rule: Option<&'p Rule>) -> &'p str {
    match rule {
        Some(rule) if name.is_empty() => &rule.path,
        Some(_) | None => name,
    }
}

/// Returns whether the answers admit the call. Skipped checks do not count, because a store skips
/// checks only after another check has refused the call.
fn admits(checks: &[Check<'_>], answers: &[Answer]) -> Result<bool, Unavailable> {
    let mut admission = Admission::default();
    for (check, answer) in checks.iter().zip(answers) {
        match answer {
            Answer::Decided(outcome) => admission.add(check.role, Some(outcome.verdict)),
            Answer::Unanswered { .. } if check.role != Role::Shadow => return Err(Unavailable),
            Answer::NotAsked | Answer::Unanswered { .. } => {}
        }
    }
    Ok(admission.is_admitted())
}

/// Returns whether a descriptor's status shows `outcome` rather than `other`: a refusal takes
/// precedence over a pass, then the longer wait or the fewer available hits. On a tie, the status
/// shows the first in file order.
fn is_stricter(outcome: &Outcome, other: &Outcome) -> bool {
    match (outcome.verdict, other.verdict) {
        (Verdict::Refuse, Verdict::Pass) => true,
        (Verdict::Pass, Verdict::Refuse) => false,
        (Verdict::Refuse, Verdict::Refuse) => is_longer(outcome.retry_after, other.retry_after),
        (Verdict::Pass, Verdict::Pass) => outcome.available < other.available,
    }
}

/// Returns whether wait `a` is longer than wait `b`. `None` is the longest, because waiting never
/// helps.
fn is_longer(a: Option<Micros>, b: Option<Micros>) -> bool {
    match (a, b) {
        (None, None) | (Some(_), None) => false,
        (None, Some(_)) => true,
        (Some(a), Some(b)) => a > b,
    }
}

fn status_without_limit<'p>(found: &DescriptorMatch<'p>, has_no_check: bool) -> Status<'p> {
    let is_unlimited = match found {
        DescriptorMatch::Unlimited(_) => true,
        DescriptorMatch::Limited(_) => has_no_check,
        DescriptorMatch::NoRule | DescriptorMatch::Replaced(_) | DescriptorMatch::Override(_) => {
            false
        }
    };
    Status {
        code: Code::Ok,
        shown: None,
        remaining: if is_unlimited { REMAINING_UNLIMITED } else { 0 },
        reset: None,
        rule: matched_rule(found).map(|rule| rule.id),
        quota: matched_rule(found).is_some_and(|rule| rule.quota_mode),
    }
}

fn fill_status<'p>(
    status: &mut Status<'p>,
    check: &Check<'_>,
    name: &'p str,
    outcome: &Outcome,
    shadow: bool,
) {
    let refused = outcome.verdict == Verdict::Refuse;
    status.shown =
        Some(StatusLimit { rate: check.limit.rate, name, capacity: check.limit.capacity() });
    status.code = if refused && !shadow { Code::OverLimit } else { Code::Ok };
    status.remaining = if refused {
        0
    } else {
        u32::try_from(outcome.available.0).unwrap_or(u32::MAX).min(REMAINING_UNLIMITED - 1)
    };
    status.reset = if refused && !shadow { outcome.retry_after } else { Some(outcome.reset_after) };
}
