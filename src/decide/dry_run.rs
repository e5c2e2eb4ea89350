//! What a call would be answered now, without making it: every check becomes a look at its counter,
//! and the answer is combined from what is there. A look knows the wait for one hit; for more the check is
//! made in a call that cannot be admitted. Charges nothing; no observer is
//! told.
//!
//! Not here: how it is shown (`app`).

use super::{Decider, Unavailable, combine, correct_roles, cost};
use crate::domain::{
    Accounting, Answer, Answers, Call, Charge, Check, Code, Decision, Hits, Key, Micros, Observer,
    Op, Outcome, Request, Role, Source, Verdict,
};
use crate::policy::Policy;
use crate::store::Store;

/// What a call would be answered.
#[derive(Clone, Debug)]
pub struct Foreseen<'p> {
    /// The answer.
    pub decision: Decision<'p>,
    /// For each descriptor the limits that it would be checked against.
    pub limits: Vec<Vec<ForeseenLimit<'p>>>,
}

/// One check, as it would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeseenLimit<'p> {
    /// The limit's own name; empty where it has none.
    pub name: &'p str,
    /// The most hits that can be taken at once.
    pub capacity: Hits,
    /// The hits that the call would take.
    pub cost: Hits,
    /// The hits that are there now; `None` if the store did not answer.
    pub available: Option<Hits>,
    /// Whether the check would pass.
    pub passes: bool,
    /// Whether it has no say.
    pub shadow: bool,
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// What the call would be answered at `now`. What is charged always would be charged by finding
    /// out the wait for more than one hit: such waits read `None`, and of several limits that refuse
    /// another one may be named than the call would name.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] as [`decide`](Self::decide).
    pub async fn foresee<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<Foreseen<'p>, Unavailable> {
        let matches = policy.find(request);
        let mut checks = policy.checks(request, &matches);
        correct_roles(&mut checks, &matches, self.modes);
        // Each for itself: what one says must not depend on another.
        let looks = checks.each.iter();
        let looks: Vec<Check<'_>> =
            looks.map(|check| Check { op: Op::Peek, role: Role::Shadow, ..*check }).collect();
        let mut answers = if looks.is_empty() {
            Answers { each: Vec::new(), source: Source::Policy }
        } else {
            let accounting = Accounting::Independent;
            self.store.apply(&Call { checks: &looks, accounting, now, deadline: None }).await
        };
        let available = |answer: &Answer| answer.outcome().map(|outcome| outcome.available);
        let there: Vec<Option<Hits>> = answers.each.iter().map(available).collect();
        for at in 0..checks.each.len().min(answers.each.len()) {
            let before = taken(&checks.each[..at], &answers.each, checks.each[at].key);
            if let Answer::Decided(outcome) = &mut answers.each[at] {
                let Outcome { verdict, retry_after, .. } =
                    match self.tried(&checks.each[..=at], now).await {
                        Some(tried) => tried,
                        None => taken_from(outcome, &checks.each[at], before),
                    };
                *outcome = Outcome { verdict, retry_after, ..*outcome };
            }
        }
        let decision = combine(&matches, &checks, &answers, self.modes)?;
        let charges = matches.accounting == Accounting::Independent
            || (decision.code == Code::Ok && !decision.shadowed);
        for at in 0..checks.each.len().min(answers.each.len()) {
            let all = taken(&checks.each, &answers.each, checks.each[at].key);
            if let (Answer::Decided(outcome), Some(there)) = (&mut answers.each[at], there[at]) {
                let gone = if charges { all } else { Hits::ZERO };
                outcome.available = Hits(there.0.saturating_sub(gone.0));
            }
        }
        let decision = combine(&matches, &checks, &answers, self.modes)?;
        let limit = |at: usize| {
            let (check, answer) = (&checks.each[at], answers.each.get(at));
            let outcome = answer.and_then(Answer::outcome);
            ForeseenLimit {
                name: checks.names[at],
                capacity: check.limit.capacity(),
                cost: cost(check),
                available: there.get(at).copied().flatten(),
                passes: outcome.is_some_and(|outcome| outcome.verdict == Verdict::Pass),
                shadow: check.role == Role::Shadow,
            }
        };
        let limits = checks.spans.iter().map(|span| span.clone().map(limit).collect());
        Ok(Foreseen { decision, limits: limits.collect() })
    }
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// What the last of these checks would meet, after those before it on its counter. They are made
    /// beside one that asks for more than the limit ever holds, which refuses the call and so leaves
    /// the counter as it is (the store's contract, 4 and 10); all are of one counter, so that no store
    /// parts them.
    ///
    /// `None` where a look at the counter says as much, and where a check would have an effect all
    /// the same.
    async fn tried(&self, checks: &[Check<'_>], now: Micros) -> Option<Outcome> {
        let last = checks.last()?;
        let cost_max = Hits(last.limit.capacity().0.saturating_add(1));
        let never = Check { op: Op::Take { cost: cost_max }, role: Role::Required, ..*last };
        let same = checks.iter().filter(|check| check.key == last.key);
        let all: Vec<Check<'_>> = std::iter::once(never)
            .chain(same.map(|check| Check { role: Role::Shadow, ..*check }))
            .collect();
        let is_free = |check: &Check<'_>| {
            check.limit.charge == Charge::Admitted && !matches!(check.op, Op::Refund { .. })
        };
        let is_alone_and_single = all.len() == 2 && cost(last) <= Hits::ONE;
        if is_alone_and_single || !all.iter().all(is_free) {
            return None;
        }
        let accounting = Accounting::AllOrNothing;
        let call = Call { checks: &all, accounting, now, deadline: None };
        self.store.apply(&call).await.each.last()?.outcome().copied()
    }
}

/// What these checks take from a counter, those of them that pass.
fn taken(checks: &[Check<'_>], answers: &[Answer], counter: Key) -> Hits {
    let passes =
        |answer: &Answer| answer.outcome().is_some_and(|outcome| outcome.verdict == Verdict::Pass);
    let taking = checks.iter().zip(answers).filter(|(check, answer)| {
        check.key == counter && matches!(check.op, Op::Take { .. }) && passes(answer)
    });
    Hits(taking.fold(0, |sum, (check, _)| sum.saturating_add(cost(check).0)))
}

/// A look at a counter as the verdict on taking from it. A look passes where one hit is there.
fn taken_from(look: &Outcome, check: &Check<'_>, before: Hits) -> Outcome {
    let available = Hits(look.available.0.saturating_sub(before.0));
    let fits = match check.op {
        Op::Take { cost } => cost <= available,
        Op::Peek => available > Hits::ZERO,
        Op::Refund { .. } => true,
    };
    let (verdict, retry_after) = if fits {
        (Verdict::Pass, None)
    } else {
        // The wait that a look tells is the one for a single hit.
        (Verdict::Refuse, look.retry_after.filter(|_| cost(check) <= Hits::ONE))
    };
    Outcome { verdict, retry_after, available, ..*look }
}
