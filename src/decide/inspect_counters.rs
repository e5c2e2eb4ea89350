//! Inspects and resets counters for operators, without notifying the observer.
//!
//! Not here: authorization (`admin`), presenting the result (`app`).

use super::Decider;
use crate::domain::{
    Accounting, Answer, Answers, Check, Descriptor, Entry, Hits, Micros, Observer, Op, Outcome,
    Rate, Request, Role, Source,
};
use crate::policy::{DescriptorMatch, Policy};
use crate::store::Store;

/// Current state of one counter.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterSnapshot<'p> {
    /// Path of the counter's rule.
    pub rule: &'p str,
    /// Name of the limit; empty if the limit is unnamed.
    pub name: &'p str,
    /// Rate of the limit, as responses report it.
    pub rate: Rate,
    /// Capacity of the limit, in hits.
    pub capacity: Hits,
    /// Outcome of peeking at or resetting the counter; `None` if the store did not answer.
    pub outcome: Option<Outcome>,
}

/// Current states of all counters of a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterSnapshots<'p> {
    /// Counters in policy-file order. Empty if no rule with limits matches the descriptor.
    pub each: Vec<CounterSnapshot<'p>>,
    /// Component that read or reset the counters. If this is [`Source::Local`], other replicas may
    /// have different counts.
    pub source: Source,
}

impl<S: Store, O: Observer> Decider<S, O> {
    /// Applies `op` to a descriptor's counters, and returns their states afterwards. [`Op::PEEK`] only
    /// reads them. [`Op::RESET`] refunds the maximum number of hits, lifts their blocks, and ends their
    /// holds, but does not release concurrency slots.
    pub async fn counters<'p>(
        &self,
        policy: &'p Policy,
        domain: &str,
        entries: &[Entry<'_>],
        op: Op,
        now: Micros,
    ) -> CounterSnapshots<'p> {
        let descriptors = [Descriptor::new(entries, Hits::ONE)];
        let request = Request { domain, descriptors: &descriptors };
        let matches = policy.find_counted(&request);
        let checks = policy.checks(&request, &matches);
        let Some(rule) = matches.found.first().and_then(DescriptorMatch::rule) else {
            return CounterSnapshots { each: Vec::new(), source: Source::Policy };
        };
        let answers = self.apply_independently(&checks.each, op, now).await;
        let snapshot = |((check, name), answer): ((&Check<'_>, &&'p str), &_)| CounterSnapshot {
            rule: &rule.path,
            name,
            rate: check.limit.rate,
            capacity: check.limit.capacity(),
            outcome: Answer::outcome(answer).copied(),
        };
        let each = checks.each.iter().zip(&checks.names).zip(&answers.each).map(snapshot).collect();
        CounterSnapshots { each, source: answers.source }
    }

    /// Applies `op` to the counters of `checks`, as independent shadow checks, so that no answer depends
    /// on another one.
    pub(super) async fn apply_independently(
        &self,
        checks: &[Check<'_>],
        op: Op,
        now: Micros,
    ) -> Answers {
        let (role, may_block) = (Role::Shadow, false);
        let checks: Vec<Check<'_>> =
            checks.iter().map(|check| Check { op, role, may_block, ..*check }).collect();
        self.apply(&checks, Accounting::Independent, now, None).await
    }
}
