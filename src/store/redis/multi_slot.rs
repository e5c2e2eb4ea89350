//! Plans a call whose counters lie in several slots of a cluster: which checks go together, which
//! go first, and what is refunded if the call is refused.
//!
//! Checks of one slot are one script call, atomic. All go out at once; only where a check was near
//! its limit when last seen does its group go first, alone, so that a refusal there holds no hits
//! elsewhere. Whatever was granted to a call that another slot refuses is refunded by receipt. So
//! what is admitted never exceeds any limit, and near one a call may be refused because another
//! holds hits for a round trip. Where a slot keeps silent, what the others granted stands: whoever
//! decides in its place admits the call, or refunds by the receipts.
//!
//! Pure: sends nothing, asks no clock.

use smallvec::SmallVec;

use super::near_limit_hints::Nearness;
use super::script::selection::is_debt;
use crate::domain::{Accounting, Answer, Check, Executed, Op, Receipt, Role, Verdict};

/// The checks of one slot, by their number in the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) slot: u16,
    pub(super) checks: SmallVec<[usize; 4]>,
}

pub(super) type Groups = SmallVec<[Group; 4]>;

/// Groups checks by slot, in the order in which the slots first appear.
pub(super) fn groups(checks: &[Check<'_>], slot: impl Fn(&Check<'_>) -> u16) -> Groups {
    let mut groups = Groups::new();
    for (at, check) in checks.iter().enumerate() {
        let slot = slot(check);
        match groups.iter_mut().find(|group| group.slot == slot) {
            Some(group) => group.checks.push(at),
            None => groups.push(Group { slot, checks: SmallVec::from_iter([at]) }),
        }
    }
    groups
}

/// The group that goes first and alone: the one of the narrowest check that can refuse the call and
/// was near its limit when last seen. `None`: all go at once.
pub(super) fn first(
    checks: &[Check<'_>],
    groups: &Groups,
    accounting: Accounting,
    near: impl Fn(&Check<'_>) -> Option<Nearness>,
) -> Option<usize> {
    if accounting == Accounting::Independent || groups.len() < 2 {
        return None;
    }
    let lone_quota = checks.iter().filter(|check| check.role == Role::Quota).count() == 1;
    let decides = |check: &Check<'_>| match check.role {
        Role::Required => true,
        Role::Quota => lone_quota,
        Role::Shadow => false,
    };
    let nearest = |group: &Group| {
        let deciding = group.checks.iter().map(|at| &checks[*at]).filter(|check| decides(check));
        deciding.filter_map(|check| Some((near(check)?, check.limit.capacity()))).min()
    };
    let near_groups =
        groups.iter().enumerate().filter_map(|(number, group)| Some((nearest(group)?, number)));
    near_groups.min().map(|(_, number)| number)
}

/// A check as its part of the call sends it. Under all-or-nothing the other slots' quota checks are
/// not known there, so a part is charged unless a required check of its own refuses, and the call
/// as a whole is settled here.
pub(super) fn part<'a>(check: &Check<'a>, accounting: Accounting) -> Check<'a> {
    let role = match (accounting, check.role) {
        (Accounting::AllOrNothing, Role::Quota) => Role::Shadow,
        (_, role) => role,
    };
    Check { role, ..*check }
}

/// Whether the first group has settled what becomes of the others: it refused the call, or it was
/// waited for in vain, and no time is left. Then the others stay unanswered, and did not run.
pub(super) fn settled(checks: &[Check<'_>], first: &Group, answers: &mut [Answer]) -> bool {
    if refused(checks, answers) {
        return true;
    }
    let in_vain = Answer::Unanswered { executed: Executed::Unknown };
    let late = first.checks.iter().any(|at| answers[*at] == in_vain);
    if late {
        let asked = |at: &usize| first.checks.contains(at);
        for at in (0..checks.len()).filter(|at| !asked(at)) {
            answers[at] = Answer::Unanswered { executed: Executed::No };
        }
    }
    late
}

/// Whether the answers so far refuse the call, whatever the others may say.
pub(super) fn refused(checks: &[Check<'_>], answers: &[Answer]) -> bool {
    let refuses = |answer: &Answer| {
        answer.outcome().is_some_and(|outcome| outcome.verdict == Verdict::Refuse)
    };
    let required =
        checks.iter().zip(answers).any(|(c, answer)| c.role == Role::Required && refuses(answer));
    let mut quotas = checks.iter().zip(answers).filter(|(c, _)| c.role == Role::Quota).peekable();
    let no_quota_left = quotas.peek().is_some() && quotas.all(|(_, answer)| refuses(answer));
    required || no_quota_left
}

/// What is left to send after the first group: everything, or, where that settled the call, only what
/// takes effect whatever becomes of it.
pub(super) fn rest(checks: &[Check<'_>], groups: Groups, first: usize, settled: bool) -> Groups {
    let mut rest: Groups =
        groups.into_iter().enumerate().filter(|(n, _)| *n != first).map(|(_, g)| g).collect();
    if settled {
        for group in &mut rest {
            group.checks.retain(|at| stands(&checks[*at]));
        }
        rest.retain(|group| !group.checks.is_empty());
    }
    rest
}

/// Takes back what a refused call was granted: the outcomes are as if it had not been, the receipts
/// are what must be sent to make it so.
pub(super) fn undo(checks: &[Check<'_>], answers: &mut [Answer]) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for (check, answer) in checks.iter().zip(answers) {
        let Answer::Decided(outcome) = answer else { continue };
        if stands(check) {
            continue;
        }
        if let Some(receipt) = Receipt::of(check, outcome) {
            receipts.push(receipt);
            *outcome = outcome.refunded(check.limit.capacity());
        }
    }
    receipts
}

/// Takes effect whatever becomes of the call: a refund, a debt.
fn stands(check: &Check<'_>) -> bool {
    matches!(check.op, Op::Refund { .. }) || is_debt(check)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{
        Algorithm, Bucket, Charge, ChargeRecord, Hits, Key, Limit, Micros, OnStoreFailure, Outcome,
        Rate, Refill, Unit,
    };

    fn limit(burst: u64, charge: Charge) -> Arc<Limit> {
        let refill = Refill::Arrival { emission: Micros(10) };
        Arc::new(Limit {
            algorithm: Algorithm::Bucket(Bucket {
                burst: Hits(burst),
                refill,
                floor: Hits::ZERO,
                leaky: false,
            }),
            rate: Rate { requests_per_unit: 1, unit: Some(Unit::Second), unit_multiplier: 1 },
            charge,
            on_store_failure: OnStoreFailure::Local,
            limit_id: 1,
        })
    }

    fn take(identity: u128, limit: &Arc<Limit>) -> Check<'_> {
        let (key, op) = (Key { identity, tag: None }, Op::Take { cost: Hits(1) });
        Check { key, limit, op, role: Role::Required, holder: None }
    }

    /// The slot is the identity's tens.
    fn by_tens(check: &Check<'_>) -> u16 {
        u16::try_from(check.key.identity / 10).unwrap()
    }

    fn decided(verdict: Verdict, charged: u64, available: u64) -> Answer {
        let (retry_after, reset_after) = (None, Micros::ZERO);
        let (hits, at, window) = (Hits(charged), Micros(1), Micros::ZERO);
        let taken = (charged > 0).then_some(ChargeRecord { hits, at, window, entry: 0 });
        let (charged, available) = (Hits(charged), Hits(available));
        Answer::Decided(Outcome { verdict, charged, available, retry_after, reset_after, taken })
    }

    fn numbers(groups: &Groups) -> Vec<Vec<usize>> {
        groups.iter().map(|group| group.checks.to_vec()).collect()
    }

    #[test]
    fn checks_of_one_slot_go_together_in_the_calls_order() {
        let limit = limit(9, Charge::Admitted);
        let checks = [21, 11, 22, 31, 12].map(|identity| take(identity, &limit));
        let groups = groups(&checks, by_tens);
        assert_eq!(numbers(&groups), [vec![0, 2], vec![1, 4], vec![3]]);
    }

    #[test]
    fn the_nearest_and_then_the_narrowest_goes_first() {
        let (wide, narrow) = (limit(100, Charge::Admitted), limit(5, Charge::Admitted));
        let checks = [take(10, &wide), take(20, &wide), take(30, &narrow)];
        let groups = groups(&checks, by_tens);
        let near = |places: [Option<u64>; 3]| {
            let near = move |check: &Check<'_>| places[usize::from(by_tens(check)) - 1];
            first(&checks, &groups, Accounting::AllOrNothing, near)
        };
        assert_eq!(near([None, None, None]), None, "far from every limit all go at once");
        assert_eq!(near([Some(9), Some(2), Some(3)]), Some(1));
        assert_eq!(near([Some(2), Some(2), Some(2)]), Some(2));
        let near = |_: &Check<'_>| Some(0);
        assert_eq!(first(&checks, &groups, Accounting::Independent, near), None);
    }

    #[test]
    fn who_cannot_refuse_the_call_never_goes_first() {
        let limit = limit(5, Charge::Admitted);
        let roles = |roles: [Role; 3]| {
            let at = |n: usize| Check { role: roles[n], ..take(10 * (n as u128 + 1), &limit) };
            let checks = [at(0), at(1), at(2)];
            let groups = groups(&checks, by_tens);
            first(&checks, &groups, Accounting::AllOrNothing, |check| {
                (by_tens(check) == 1).then_some(0)
            })
        };
        assert_eq!(roles([Role::Shadow, Role::Required, Role::Required]), None);
        assert_eq!(roles([Role::Quota, Role::Quota, Role::Required]), None);
        assert_eq!(roles([Role::Quota, Role::Shadow, Role::Required]), Some(0));
    }

    #[test]
    fn a_quota_check_refuses_only_with_all_others() {
        let limit = limit(5, Charge::Admitted);
        let quota = |identity| Check { role: Role::Quota, ..take(identity, &limit) };
        let checks = [quota(10), quota(20), take(30, &limit)];
        let (no, yes) = (decided(Verdict::Refuse, 0, 0), decided(Verdict::Pass, 1, 4));
        assert!(!refused(&checks, &[no, yes, yes]));
        assert!(!refused(&checks, &[no, Answer::NotAsked, yes]), "not known yet");
        assert!(refused(&checks, &[no, no, yes]));
        assert!(refused(&checks, &[yes, yes, no]));
    }

    #[test]
    fn a_first_group_that_was_waited_for_in_vain_leaves_no_time_for_the_others() {
        let limit = limit(5, Charge::Admitted);
        let checks = [take(10, &limit), take(20, &limit)];
        let groups = groups(&checks, by_tens);
        let unanswered = |executed| Answer::Unanswered { executed };
        let mut at_once = [unanswered(Executed::No), Answer::NotAsked];
        assert!(!settled(&checks, &groups[0], &mut at_once), "there is time to ask the other");
        let mut late = [unanswered(Executed::Unknown), Answer::NotAsked];
        assert!(settled(&checks, &groups[0], &mut late));
        assert_eq!(late[1], unanswered(Executed::No), "it has a say, and has not had it");
        let mut refusal = [decided(Verdict::Refuse, 0, 0), Answer::NotAsked];
        assert!(settled(&checks, &groups[0], &mut refusal));
        assert_eq!(refusal[1], Answer::NotAsked);
    }

    #[test]
    fn a_refused_call_keeps_its_debts_and_returns_the_rest() {
        let (plain, debt) = (limit(5, Charge::Admitted), limit(5, Charge::Always));
        let checks = [take(10, &plain), take(20, &debt), take(30, &plain)];
        let mut answers = [
            decided(Verdict::Pass, 1, 4),
            decided(Verdict::Pass, 1, 4),
            decided(Verdict::Refuse, 0, 0),
        ];
        let groups = groups(&checks, by_tens);
        assert_eq!(numbers(&rest(&checks, groups.clone(), 2, false)), [vec![0], vec![1]]);
        assert_eq!(numbers(&rest(&checks, groups, 2, true)), [vec![1]]);
        let receipts = undo(&checks, &mut answers);
        assert_eq!(receipts.len(), 1);
        assert_eq!(receipts[0].key, checks[0].key);
        assert_eq!(answers[0], decided(Verdict::Pass, 0, 5));
        assert_eq!(answers[1], decided(Verdict::Pass, 1, 4));
    }
}
