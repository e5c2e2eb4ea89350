//! Dry run of a request: the decision it would get now, without charging anything or notifying the
//! observer.
//!
//! Every check becomes a peek, and the decision is combined from the peeks. A peek knows the wait for
//! one hit only.
//!
//! Not here: how the result is shown (`app`).

use super::{Decider, Unavailable, assign_quota_roles, combine, is_admitted};
use crate::domain::{
    Accounting, Algorithm, Answer, Check, CounterKey, Decision, Hits, Micros, Observer, Op,
    Outcome, Request, Role, Verdict,
};
use crate::policy::Policy;
use crate::store::Store;

/// Result of a dry run.
#[derive(Clone, Debug)]
pub struct DryRun<'p> {
    /// The decision.
    pub decision: Decision<'p>,
    /// For each descriptor, the limits that would be checked.
    pub limits: Vec<Vec<DryRunLimit<'p>>>,
}

/// Result of one check in a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DryRunLimit<'p> {
    /// The limit's own name; empty where it has none.
    pub name: &'p str,
    /// Largest cost that can pass.
    pub capacity: Hits,
    /// Hits that the request would take.
    pub cost: Hits,
    /// Hits available now; `None` if the store did not answer.
    pub available: Option<Hits>,
    /// Whether the check would pass.
    pub passes: bool,
    /// Whether the check has no effect on admission.
    pub shadow: bool,
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// Returns the decision that a request would get at `now`.
    ///
    /// If a refused check costs more than one hit, its wait is unknown: `retry_after` is `None`, and
    /// `limited_by` may name another limit than the request would get. Several hits on a limit with
    /// hybrid tiers may pass although the prediction is a refusal, because a peek does not tell the
    /// class's own bucket from the pool.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] as [`decide`](Self::decide).
    pub async fn dry_run<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<DryRun<'p>, Unavailable> {
        let matches = policy.find(request);
        let mut checks = policy.checks(request, &matches);
        assign_quota_roles(&mut checks, &matches, self.modes);
        // Independent shadow checks, so that no answer depends on another check.
        let peeks: Vec<Check<'_>> = checks
            .each
            .iter()
            .map(|check| Check { op: Op::Peek, role: Role::Shadow, ..*check })
            .collect();
        let mut answers = self.apply(&peeks, Accounting::Independent, now, None).await;
        let available = |answer: &Answer| answer.outcome().map(|outcome| outcome.available);
        let available_now: Vec<Option<Hits>> = answers.each.iter().map(available).collect();
        for at in 0..checks.each.len().min(answers.each.len()) {
            let before = hits_taken(&checks.each[..at], &answers.each, checks.each[at].key);
            if let Answer::Decided(outcome) = &mut answers.each[at] {
                let Outcome { verdict, retry_after, .. } =
                    outcome_from_peek(outcome, &checks.each[at], before);
                *outcome = Outcome { verdict, retry_after, ..*outcome };
            }
        }
        let decision = combine(&matches, &checks, &answers, self.modes)?;
        let charges = matches.accounting == Accounting::Independent || is_admitted(&decision);
        for (at, now) in available_now.iter().enumerate().take(checks.each.len()) {
            let all = hits_taken(&checks.each, &answers.each, checks.each[at].key);
            if let (Answer::Decided(outcome), Some(now)) = (&mut answers.each[at], now) {
                let charged = if charges { all } else { Hits::ZERO };
                outcome.available = Hits(now.0.saturating_sub(charged.0));
            }
        }
        let decision = combine(&matches, &checks, &answers, self.modes)?;
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

/// Returns the hits that the passing ones of these checks take from a counter.
fn hits_taken(checks: &[Check<'_>], answers: &[Answer], counter: CounterKey) -> Hits {
    let takes = checks.iter().zip(answers).filter(|(check, answer)| {
        check.key == counter && !check.is_refund() && answer.verdict() == Some(Verdict::Pass)
    });
    Hits(takes.fold(0, |sum, (check, _)| sum.saturating_add(check.cost().0)))
}

/// Turns a peek into the outcome of a check, after earlier checks have taken `before` hits.
fn outcome_from_peek(peek: &Outcome, check: &Check<'_>, before: Hits) -> Outcome {
    let available = Hits(peek.available.0.saturating_sub(before.0));
    // Hits pass while at least the floor is left, so one call can take more than the single hits.
    let below_floor = match &check.limit.algorithm {
        Algorithm::Bucket(bucket) => bucket.floor.0.saturating_sub(1),
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => 0,
    };
    let largest = if available == Hits::ZERO { 0 } else { available.0 + below_floor };
    let (verdict, retry_after) = if check.hits_needed().0 <= largest {
        (Verdict::Pass, None)
    } else {
        // A peek's wait is that for a single hit.
        (Verdict::Refuse, peek.retry_after.filter(|_| check.cost() <= Hits::ONE))
    };
    Outcome { verdict, retry_after, available, ..*peek }
}
