//! Counters looked at, and reset, for operators. No observer is told: nobody called.
//!
//! Not here: who may ask (`admin`), how it is shown (`app`).

use super::Decider;
use crate::domain::{
    Accounting, Answer, Call, Check, Descriptor, Entry, Hits, Micros, Observer, Op, Outcome, Rate,
    Request, Role, Source,
};
use crate::policy::Policy;
use crate::store::Store;

/// How a counter stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing<'p> {
    /// Its rule's path.
    pub rule: &'p str,
    /// The limit's own name; empty where it has none.
    pub name: &'p str,
    /// The rate as written.
    pub rate: Rate,
    /// The most hits that can be taken at once.
    pub capacity: Hits,
    /// What the store says; `None` if it did not answer.
    pub outcome: Option<Outcome>,
}

/// The counters of one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct Standings<'p> {
    /// In the policy's order; none where no rule with limits matches.
    pub each: Vec<Standing<'p>>,
    /// Who said so: with [`Source::Local`] other replicas may say otherwise.
    pub source: Source,
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// Looks at the counters of a descriptor. Charges nothing.
    pub async fn standings<'p>(
        &self,
        policy: &'p Policy,
        domain: &str,
        entries: &[Entry<'_>],
        now: Micros,
    ) -> Standings<'p> {
        self.apply_to_all(policy, domain, entries, Op::Peek, now).await
    }

    /// Makes the counters of a descriptor as good as new, by refunding all that can be used; says
    /// how they stand then. Slots of concurrency stay with their holders.
    pub async fn reset<'p>(
        &self,
        policy: &'p Policy,
        domain: &str,
        entries: &[Entry<'_>],
        now: Micros,
    ) -> Standings<'p> {
        let everything = Op::Refund { cost: Hits(u64::MAX) };
        self.apply_to_all(policy, domain, entries, everything, now).await
    }

    async fn apply_to_all<'p>(
        &self,
        policy: &'p Policy,
        domain: &str,
        entries: &[Entry<'_>],
        op: Op,
        now: Micros,
    ) -> Standings<'p> {
        let descriptor =
            Descriptor { entries, hits: Hits::ONE, refund: false, limit: None, holder: None };
        let descriptors = [descriptor];
        let request = Request { domain, descriptors: &descriptors };
        let matches = policy.find(&request);
        let checks = policy.checks(&request, &matches);
        let Some(rule) = matches.found.first().and_then(super::rule_of) else {
            return Standings { each: Vec::new(), source: Source::Policy };
        };
        // Each for itself: what one says must not depend on another.
        let asked: Vec<Check<'_>> =
            checks.each.iter().map(|check| Check { op, role: Role::Shadow, ..*check }).collect();
        if asked.is_empty() {
            return Standings { each: Vec::new(), source: Source::Policy };
        }
        let accounting = Accounting::Independent;
        let call = Call { checks: &asked, accounting, now, deadline: None };
        let answers = self.store.apply(&call).await;
        let standing = |((check, name), answer): ((&Check<'_>, &&'p str), &_)| Standing {
            rule: &rule.path,
            name,
            rate: check.limit.rate,
            capacity: check.limit.capacity(),
            outcome: Answer::outcome(answer).copied(),
        };
        let each = asked.iter().zip(&checks.names).zip(&answers.each).map(standing).collect();
        Standings { each, source: answers.source }
    }
}
