//! Decides rate limit requests: matches a request against the policy, sends its checks to the
//! store, and combines the store's answers into a decision.
//!
//! Generic over the store. The store call is the only await point of a decision.
//!
//! Not here: the wire format (`wire`), policy files (`policy`), the arithmetic of limits
//! (`algorithm`), the clock (`clock`).

mod descriptor_status;
mod dry_run;
mod generated_holder;
mod inspect_counters;
mod limited_by;
mod notify_observer;
mod quota_roles;
mod soft_limits;

pub use descriptor_status::REMAINING_UNLIMITED;
pub use dry_run::{DryRun, DryRunLimit};
pub use inspect_counters::{CounterSnapshot, CounterSnapshots};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};

use crate::decide::generated_holder::{CallHolders, HolderGenerator};
use crate::decide::quota_roles::QuotaGroups;
use crate::domain::{
    Accounting, Admission, Algorithm, Answer, Answers, CALL_WORK_MAX, Call, Check, Code, Decision,
    Micros, NearEvent, Observer, Op, Request, Role, Source,
};
use crate::policy::{Checks, Matches, Policy};
use crate::store::Store;

/// Global modes of the process, which apply to all rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalModes {
    /// Whether to respond OK regardless of the decision. Limits are charged as usual.
    pub shadow: bool,
    /// Whether to treat every descriptor as a quota descriptor.
    pub quota: bool,
}

/// Reason why a request was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecideError {
    /// The store did not answer in time, and no fallback decided the call.
    Unavailable,
    /// The request needs more checks than the policy allows, or more than its batch may still make.
    /// The store was not called.
    TooManyChecks {
        /// Maximum number of checks per call.
        checks_max: usize,
        /// Whether the checks exceed those of the batch, not those of a call.
        in_batch: bool,
    },
    /// The checks of the request are more work for Redis than a call may be, [`CALL_WORK_MAX`]. The
    /// store was not called.
    TooMuchWork,
}

/// Limits on the decision of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallLimits<'a> {
    /// Time at which the caller stops waiting; `None` if it has set no deadline.
    pub deadline: Option<Instant>,
    /// Number of checks that the request's batch may still make; `None` without a batch.
    pub batch_checks: Option<&'a AtomicUsize>,
}

impl CallLimits<'_> {
    /// Takes checks from those of the batch. If too few are left, returns `false` and takes none.
    fn take_checks(self, count: usize) -> bool {
        let take = |left: usize| left.checked_sub(count);
        self.batch_checks.is_none_or(|left| {
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        })
    }
}

/// Decision engine for rate limit requests. Owns the active policy, the store and the observer.
#[derive(Debug)]
pub struct Decider<S, O> {
    policy: ArcSwap<Policy>,
    store: S,
    observer: Arc<O>,
    modes: GlobalModes,
    holders: HolderGenerator,
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// Creates a decider that starts with `policy`.
    pub fn new(policy: Arc<Policy>, store: S, observer: Arc<O>, modes: GlobalModes) -> Self {
        let holders = HolderGenerator::default();
        Decider { policy: ArcSwap::new(policy), store, observer, modes, holders }
    }

    /// Returns the active policy. Call this only once per request, so that a reload cannot affect a
    /// request in progress.
    pub fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Replaces the active policy. Requests in progress finish under the previous policy.
    pub fn replace_policy(&self, policy: Arc<Policy>) {
        self.policy.store(policy);
    }

    /// Returns the store that holds the counters.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the global modes of the process.
    pub fn modes(&self) -> GlobalModes {
        self.modes
    }

    /// Returns the observer that is notified of decisions.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Decides whether a request may pass.
    ///
    /// # Errors
    ///
    /// Returns a [`DecideError`] if the store is unavailable or the request needs too many checks.
    pub async fn decide<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<Decision<'p>, DecideError> {
        self.decide_by(policy, request, now, CallLimits::default()).await
    }

    /// Decides whether a request may pass, within the limits of its call.
    ///
    /// # Errors
    ///
    /// Returns a [`DecideError`] in the same cases as [`decide`](Self::decide).
    pub async fn decide_by<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
        limits: CallLimits<'_>,
    ) -> Result<Decision<'p>, DecideError> {
        let mut matches = Matches::default();
        policy.find_into(request, &mut matches);
        let mut checks = Checks::default();
        policy.push_checks(request, &matches, &mut checks);
        check_bounds(policy, &checks)?;
        if !limits.take_checks(checks.each.len()) {
            let checks_max = policy.checks_max();
            return Err(DecideError::TooManyChecks { checks_max, in_batch: true });
        }
        let quotas = quota_roles::assign_roles(&mut checks, &matches, request, self.modes.quota);
        let holders = self.assign_holders(policy, &mut checks);
        let answers = self.apply(&checks.each, matches.accounting, now, limits.deadline).await;
        let mut decision = combine(&matches, &checks, &quotas, &answers, self.modes)?;
        if is_admitted(&decision) {
            (decision.slot, decision.hold) = holders.acquired(&checks.each, &answers.each);
        }
        if policy.has_soft_limits {
            let on_near = |event: &NearEvent<'_>| self.observer.on_near(event);
            decision.marks =
                soft_limits::find_marks(&decision, request, &matches, &checks, &answers, on_near);
        }
        self.notify(policy, request, &matches, &checks, &answers, &decision);
        Ok(decision)
    }

    /// Sends the checks to the store and returns its answers. Does not call the store if there are
    /// no checks.
    async fn apply(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        now: Micros,
        deadline: Option<Instant>,
    ) -> Answers {
        if checks.is_empty() {
            return Answers::new(Vec::new(), Source::Policy);
        }
        self.store.apply(&Call { checks, accounting, now, deadline }).await
    }

    /// Generates a holder if the request has checks that acquire concurrency slots or hold hits without
    /// naming a holder, and assigns it to all of these checks.
    fn assign_holders(&self, policy: &Policy, checks: &mut Checks<'_, '_>) -> CallHolders {
        let mut holders = CallHolders::default();
        for check in &mut checks.each {
            let is_hold = check.is_hold();
            holders.has_hold |= is_hold;
            if check.holder.is_some()
                || !(is_hold || matches!(check.limit.algorithm, Algorithm::Concurrency(_)))
            {
                continue;
            }
            match check.op {
                Op::Peek { .. } | Op::Settle { .. } => {}
                Op::Refund { .. } => self.observer.release_without_holder(),
                Op::Take { .. } | Op::Hold { .. } => {
                    let holder =
                        holders.generated.get_or_insert_with(|| self.holders.generate(policy));
                    check.holder = Some(holder.holder);
                }
            }
        }
        holders
    }
}

/// Returns an error if the request needs too many checks, or too much work.
fn check_bounds(policy: &Policy, checks: &Checks<'_, '_>) -> Result<(), DecideError> {
    if checks.is_truncated {
        return Err(DecideError::TooManyChecks {
            checks_max: policy.checks_max(),
            in_batch: false,
        });
    }
    if checks.each.iter().map(Check::work).sum::<u64>() > CALL_WORK_MAX {
        return Err(DecideError::TooMuchWork);
    }
    Ok(())
}

/// Returns whether the decision would admit the call without global shadow mode.
fn is_admitted(decision: &Decision<'_>) -> bool {
    decision.code == Code::Ok && !decision.shadowed
}

/// Combines the store's answers into a decision, following the rules for admission and statuses in
/// docs/POLICY.md. Returns an error if an enforced check was not answered, unless global shadow
/// mode is on.
fn combine<'p>(
    matches: &Matches<'p>,
    checks: &Checks<'_, 'p>,
    quotas: &QuotaGroups,
    answers: &Answers,
    modes: GlobalModes,
) -> Result<Decision<'p>, DecideError> {
    let is_admitted = match admits(&checks.each, &answers.each) {
        // Global shadow mode answers OK, also without the store.
        Err(DecideError::Unavailable) if modes.shadow => false,
        admits => admits?,
    };
    let mut statuses = Vec::with_capacity(matches.found.len());
    for (found, span) in matches.found.iter().zip(&checks.spans) {
        let is_quota = quota_roles::is_quota(found, modes.quota);
        let span = span.clone();
        statuses.push(descriptor_status::descriptor_status(
            found,
            is_quota,
            span,
            checks,
            &answers.each,
        ));
    }
    quotas.mark_refused(&mut statuses);
    let limited_by =
        if is_admitted { None } else { limited_by::find_rejecting_limit(matches, checks, answers) };
    let shadowed = modes.shadow && !is_admitted;
    let code = if is_admitted || shadowed { Code::Ok } else { Code::OverLimit };
    Ok(Decision {
        code,
        statuses,
        limited_by,
        source: answers.source,
        shadowed,
        domain_known: matches.has_domain(),
        slot: None,
        marks: Vec::new(),
        hold: None,
    })
}

/// Returns whether the answers admit the call, or an error if the store did not answer an enforced
/// check. Ignores checks that were not sent to the store, because a store skips a check only if
/// another check has already rejected the call.
fn admits(checks: &[Check<'_>], answers: &[Answer]) -> Result<bool, DecideError> {
    let mut admission = Admission::default();
    for (check, answer) in checks.iter().zip(answers) {
        match answer {
            Answer::Decided(outcome) => admission.add(check.role, Some(outcome.verdict)),
            Answer::Unanswered { .. } if check.role != Role::Shadow => {
                return Err(DecideError::Unavailable);
            }
            Answer::NotAsked | Answer::LastKnown { .. } | Answer::Unanswered { .. } => {}
        }
    }
    Ok(admission.is_admitted())
}
