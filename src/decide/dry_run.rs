//! Dry run: predicts the decision on a request without charging limits or notifying the observer.
//!
//! Replaces every check with a peek, and derives the decision from the outcomes of the peeks. A
//! peek reports the wait until a single hit would pass.
//!
//! Not here: presenting the result (`app`).

use std::collections::HashMap;

use super::{DecideError, Decider, check_bounds, combine, is_admitted, quota_roles, soft_limits};
use crate::domain::{
    Accounting, Answer, CounterKey, Decision, Hits, Micros, Observer, Op, Request, Role, Verdict,
};
use crate::policy::Policy;
use crate::store::Store;

/// Predicted decision on a request, and the state of each limit that the request would check.
#[derive(Clone, Debug)]
pub struct DryRun<'p> {
    /// Predicted decision.
    pub decision: Decision<'p>,
    /// Limits that the request would check, grouped by descriptor.
    pub limits: Vec<Vec<DryRunLimit<'p>>>,
}

/// Limit checked by a dry run, with its state before the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DryRunLimit<'p> {
    /// Name of the limit; empty if the limit is unnamed.
    pub name: &'p str,
    /// Capacity of the limit, in hits.
    pub capacity: Hits,
    /// Hits that the request would charge or refund; 0 for a peek.
    pub cost: Hits,
    /// Hits available before the request, or `None` if the store did not answer.
    pub available: Option<Hits>,
    /// Whether the check would pass.
    pub passes: bool,
    /// Whether the check has no effect on admission.
    pub shadow: bool,
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// Returns the decision that a request would get at `now`.
    ///
    /// If a refused check costs more than one hit, its wait is unknown. In that case,
    /// `retry_after` is `None`, and `limited_by` may differ from the one in the real decision. On a
    /// limit with hybrid tiers, a request of several hits may pass although the dry run predicts a
    /// rejection, because a peek does not distinguish the class's guaranteed share from the pool. The
    /// dry run also leaves out refunds in the request itself, which the store makes before it checks
    /// the charges.
    ///
    /// # Errors
    ///
    /// Returns a [`DecideError`] in the same cases as [`decide`](Self::decide).
    pub async fn dry_run<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<DryRun<'p>, DecideError> {
        let matches = policy.find(request);
        let mut checks = policy.checks(request, &matches);
        check_bounds(policy, &checks)?;
        let quotas = quota_roles::assign_roles(&mut checks, &matches, request, self.modes.quota);
        let mut answers = self.apply_independently(&checks.each, Op::PEEK, now).await;
        let available = |answer: &Answer| answer.outcome().map(|outcome| outcome.available);
        let available_now: Vec<Option<Hits>> = answers.each.iter().map(available).collect();
        // Hits that the passing checks so far charge to each counter.
        let mut charged_hits: HashMap<CounterKey, u64> = HashMap::new();
        for (check, answer) in checks.each.iter().zip(&mut answers.each) {
            let Answer::Decided(outcome) = answer else { continue };
            let prior_hits = charged_hits.entry(check.key).or_insert(0);
            let available = Hits(outcome.available.0.saturating_sub(*prior_hits));
            if check.hits_needed() > available {
                outcome.verdict = Verdict::Refuse;
                // A peek waits as long as a single hit would.
                outcome.retry_after =
                    outcome.retry_after.filter(|_| check.hits_needed() <= Hits::ONE);
                continue;
            }
            (outcome.verdict, outcome.retry_after) = (Verdict::Pass, None);
            if !check.comes_first() {
                *prior_hits = prior_hits.saturating_add(check.cost().0);
            }
        }
        let decision = combine(&matches, &checks, &quotas, &answers, self.modes)?;
        let charges = matches.accounting == Accounting::Independent || is_admitted(&decision);
        for (at, now) in available_now.iter().enumerate() {
            let all = charged_hits.get(&checks.each[at].key).copied().unwrap_or(0);
            if let (Answer::Decided(outcome), Some(now)) = (&mut answers.each[at], now) {
                let charged = if charges { all } else { 0 };
                outcome.available = Hits(now.0.saturating_sub(charged));
            }
        }
        let mut decision = combine(&matches, &checks, &quotas, &answers, self.modes)?;
        if policy.has_soft_limits {
            decision.marks =
                soft_limits::find_marks(&decision, request, &matches, &checks, &answers, |_| ());
        }
        let limit = |at: usize| {
            let (check, answer) = (&checks.each[at], answers.each.get(at));
            let outcome = answer.and_then(Answer::outcome);
            DryRunLimit {
                name: checks.names[at],
                capacity: check.limit.capacity(),
                cost: check.cost(),
                available: available_now.get(at).copied().flatten(),
                passes: outcome.is_some_and(|outcome| outcome.verdict == Verdict::Pass),
                shadow: check.role == Role::Shadow,
            }
        };
        let limits = checks.spans.iter().map(|span| span.clone().map(limit).collect());
        Ok(DryRun { decision, limits: limits.collect() })
    }
}
