//! The heart: match → apply → combine.
//!
//! Generic over the store; the store call is the only await on a request's way. Not here: the
//! wire, the policy's language, arithmetic of limits, time.

mod check_event;
mod dry_run;
mod generated_holders;
mod inspect_counters;
mod refusal_event;

pub use dry_run::{Foreseen, ForeseenLimit};
pub use inspect_counters::{Standing, Standings};

use std::sync::Arc;
use std::time::Instant;

use crate::decide::check_event::unlimited;
use crate::decide::generated_holders::Holders;
use arc_swap::{ArcSwap, Guard};

use crate::domain::{
    Algorithm, Answer, Answers, Call, Check, CheckEvent, Code, Decision, Hits, Holder, HolderToken,
    LimitedBy, Micros, Observer, Op, Outcome, Request, Role, Source, Status, StatusLimit, Verdict,
};
use crate::policy::{Checks, Found, Matches, Policy, Rule};
use crate::store::Store;

/// `limit_remaining` of a rule without a limit.
pub const REMAINING_UNLIMITED: u32 = u32::MAX;

/// Modes of the whole process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modes {
    /// Decide and charge as if enforced, then answer OK.
    pub shadow: bool,
    /// Every descriptor is a quota descriptor.
    pub quota: bool,
}

/// The store gave no answer in time, and no failure policy stood in for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

/// Decides requests under the present policy.
#[derive(Debug)]
pub struct Decider<S, O> {
    policy: ArcSwap<Policy>,
    store: S,
    observer: O,
    modes: Modes,
    holders: Holders,
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// A decider that starts with `policy`.
    pub fn new(policy: Arc<Policy>, store: S, observer: O, modes: Modes) -> Self {
        let holders = Holders::default();
        Decider { policy: ArcSwap::new(policy), store, observer, modes, holders }
    }

    /// The present policy. A request takes it once and sees no other.
    pub fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Swaps the policy; requests under way finish under the one they took.
    pub fn replace_policy(&self, policy: Arc<Policy>) {
        self.policy.store(policy);
    }

    /// The store that counts.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The observer that is told.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// May this request pass?
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if the store gave no answer and nothing stood in for it.
    pub async fn decide<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<Decision<'p>, Unavailable> {
        self.decide_by(policy, request, now, None).await
    }

    /// The same for a caller who waits no longer than `deadline`.
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
        correct_roles(&mut checks, &matches, self.modes);
        let made_up = self.name_holders(policy, &mut checks);
        let answers = if checks.each.is_empty() {
            Answers { each: Vec::new(), source: Source::Policy }
        } else {
            let accounting = matches.accounting;
            let call = Call { checks: &checks.each, accounting, now, deadline };
            self.store.apply(&call).await
        };
        let mut decision = combine(&matches, &checks, &answers, self.modes)?;
        decision.slot = made_up
            .filter(|made_up| took_slot(&checks, &answers, made_up, &decision))
            .map(|m| m.slot);
        self.tell(request, &matches, &checks, &answers, &decision);
        Ok(decision)
    }

    /// Takes of slots without a holder get one, the same for the whole call.
    fn name_holders(&self, policy: &Policy, checks: &mut Checks<'_, '_>) -> Option<MadeUp> {
        let mut made_up = None;
        for check in &mut checks.each {
            if check.holder.is_some() || !matches!(check.limit.algorithm, Algorithm::Concurrency(_))
            {
                continue;
            }
            match check.op {
                Op::Peek => {}
                Op::Refund { .. } => self.observer.release_without_holder(),
                Op::Take { .. } => {
                    let made_up: &MadeUp = made_up.get_or_insert_with(|| {
                        let slot = self.holders.draw();
                        MadeUp { slot, holder: policy.holder(slot.as_str().as_bytes()) }
                    });
                    check.holder = Some(made_up.holder);
                }
            }
        }
        made_up
    }

    fn tell(
        &self,
        request: &Request<'_>,
        matches: &Matches<'_>,
        checks: &Checks<'_, '_>,
        answers: &Answers,
        decision: &Decision<'_>,
    ) {
        let admitted = decision.code == Code::Ok && !decision.shadowed;
        let descriptors = matches.found.iter().zip(&checks.spans).zip(request.descriptors);
        for ((found, span), descriptor) in descriptors {
            let rule = rule_of(found);
            if let Found::Unlimited(rule) = found {
                self.observer.checked(&unlimited(rule, descriptor, admitted));
            }
            for at in span.clone() {
                let (check, Some(Answer::Decided(outcome))) =
                    (&checks.each[at], answers.each.get(at))
                else {
                    continue;
                };
                if outcome.verdict == Verdict::Refuse {
                    self.tell_refused(rule, check, checks.names[at], descriptor);
                }
                self.observer.checked(&CheckEvent {
                    rule: rule.map(|rule| rule.id),
                    hits: cost(check),
                    capacity: check.limit.capacity(),
                    outcome: *outcome,
                    shadow: rule.is_some_and(|rule| rule.shadow_mode),
                    admitted,
                    is_refund: matches!(check.op, Op::Refund { .. }),
                    source: decision.source,
                });
            }
        }
        self.observer.decided(decision);
    }
}

/// A holder's name that the caller does not know yet.
struct MadeUp {
    slot: HolderToken,
    holder: Holder,
}

/// Whether an admitted call took slots for that holder.
fn took_slot(
    checks: &Checks<'_, '_>,
    answers: &Answers,
    made_up: &MadeUp,
    decision: &Decision<'_>,
) -> bool {
    let took = |(check, answer): (&Check<'_>, &Answer)| {
        check.holder == Some(made_up.holder)
            && answer.outcome().is_some_and(|outcome| outcome.charged > Hits::ZERO)
    };
    decision.code == Code::Ok
        && !decision.shadowed
        && checks.each.iter().zip(&answers.each).any(took)
}

fn rule_of<'p>(found: &Found<'p>) -> Option<&'p Rule> {
    match found {
        Found::Replaced(rule) | Found::Unlimited(rule) | Found::Limited(rule) => Some(rule),
        Found::Nothing | Found::Override(_) => None,
    }
}

fn cost(check: &Check<'_>) -> Hits {
    match check.op {
        Op::Take { cost } | Op::Refund { cost } => cost,
        Op::Peek => Hits::ZERO,
    }
}

/// Under global quota mode every descriptor is a quota descriptor. And wherever a quota descriptor
/// cannot refuse (it is shadowed, unlimited, replaced or, under the global mode, unmatched), one
/// quota descriptor passes for certain, so that the others have no say.
fn correct_roles(checks: &mut Checks<'_, '_>, matches: &Matches<'_>, modes: Modes) {
    let is_quota =
        |found: &Found<'_>| modes.quota || rule_of(found).is_some_and(|rule| rule.quota_mode);
    let quota_is_sure = matches.found.iter().zip(&checks.spans).any(|(found, span)| {
        is_quota(found)
            && match found {
                Found::Nothing | Found::Replaced(_) | Found::Unlimited(_) => true,
                // No check: the value is in no consumer class, and such are not limited.
                Found::Limited(rule) => rule.shadow_mode || span.is_empty(),
                Found::Override(_) => false,
            }
    });
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        if !is_quota(found) {
            continue;
        }
        for check in &mut checks.each[span.clone()] {
            if check.role != Role::Shadow {
                check.role = if quota_is_sure { Role::Shadow } else { Role::Quota };
            }
        }
    }
}

/// Makes the answer out of the outcomes (POLICY in the README: Admission, and what a status shows).
fn combine<'p>(
    matches: &Matches<'p>,
    checks: &Checks<'_, 'p>,
    answers: &Answers,
    modes: Modes,
) -> Result<Decision<'p>, Unavailable> {
    let admitted = admitted(&checks.each, &answers.each)?;
    let mut statuses = Vec::with_capacity(matches.found.len());
    let mut limited_by: Option<LimitedBy<'p>> = None;
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        let rule = rule_of(found);
        let shadow = rule.is_some_and(|rule| rule.shadow_mode);
        let mut worst: Option<(usize, &Outcome)> = None;
        for at in span.clone() {
            let Some(outcome) = answers.each.get(at).and_then(Answer::outcome) else { continue };
            if worst.is_none_or(|(_, held)| tighter(outcome, held)) {
                worst = Some((at, outcome));
            }
            if !admitted && outcome.verdict == Verdict::Refuse && !shadow {
                let candidate = LimitedBy {
                    name: own_name_or_path(checks.names[at], rule),
                    rule: rule.map(|rule| rule.id),
                    retry_after: outcome.retry_after,
                };
                if limited_by.is_none_or(|held| waits_longer(&candidate, &held)) {
                    limited_by = Some(candidate);
                }
            }
        }
        let mut status = bare_status(found, span.is_empty());
        if let Some((at, outcome)) = worst {
            fill_status(&mut status, &checks.each[at], checks.names[at], outcome, shadow);
        }
        statuses.push(status);
    }
    let shadowed = modes.shadow && !admitted;
    let code = if admitted || shadowed { Code::Ok } else { Code::OverLimit };
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

/// What to call a limit that has no name of its own: its rule's path. A limit that the caller
/// brought along has neither.
fn own_name_or_path<'p>(name: &'p str, rule: Option<&'p Rule>) -> &'p str {
    match rule {
        Some(rule) if name.is_empty() => &rule.path,
        Some(_) | None => name,
    }
}

/// A call is admitted iff every required check passes and, if it has quota checks, one of them
/// does.
fn admitted(checks: &[Check<'_>], answers: &[Answer]) -> Result<bool, Unavailable> {
    let (mut refused, mut quotas, mut quota_passes) = (false, false, false);
    for (check, answer) in checks.iter().zip(answers) {
        let passes = match answer {
            Answer::Decided(outcome) => outcome.verdict == Verdict::Pass,
            Answer::NotAsked => continue,
            Answer::Unanswered { .. } if check.role == Role::Shadow => continue,
            Answer::Unanswered { .. } => return Err(Unavailable),
        };
        match check.role {
            Role::Required => refused |= !passes,
            Role::Quota => {
                quotas = true;
                quota_passes |= passes;
            }
            Role::Shadow => {}
        }
    }
    Ok(!refused && (!quotas || quota_passes))
}

/// Which of two limits of one descriptor its status shows: the refusing one with the longest wait,
/// else the one with the fewest hits left; ties in file order.
fn tighter(outcome: &Outcome, held: &Outcome) -> bool {
    match (outcome.verdict, held.verdict) {
        (Verdict::Refuse, Verdict::Pass) => true,
        (Verdict::Pass, Verdict::Refuse) => false,
        (Verdict::Refuse, Verdict::Refuse) => longer(outcome.retry_after, held.retry_after),
        (Verdict::Pass, Verdict::Pass) => outcome.available < held.available,
    }
}

fn waits_longer(candidate: &LimitedBy<'_>, held: &LimitedBy<'_>) -> bool {
    longer(candidate.retry_after, held.retry_after)
}

/// Waiting that never helps is the longest wait.
fn longer(a: Option<Micros>, b: Option<Micros>) -> bool {
    match (a, b) {
        (None, None) | (Some(_), None) => false,
        (None, Some(_)) => true,
        (Some(a), Some(b)) => a > b,
    }
}

fn bare_status<'p>(found: &Found<'p>, has_no_check: bool) -> Status<'p> {
    let is_unlimited = match found {
        Found::Unlimited(_) => true,
        Found::Limited(_) => has_no_check,
        Found::Nothing | Found::Replaced(_) | Found::Override(_) => false,
    };
    Status {
        code: Code::Ok,
        shown: None,
        remaining: if is_unlimited { REMAINING_UNLIMITED } else { 0 },
        reset: None,
        rule: rule_of(found).map(|rule| rule.id),
        quota: rule_of(found).is_some_and(|rule| rule.quota_mode),
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
