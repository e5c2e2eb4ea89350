//! Plans a call whose counters lie in several slots of a cluster: which checks go together, which
//! go first, and what is given back if the call is refused.
//!
//! Checks of one slot are one script call, atomic. All go out at once; only where a check was near
//! its limit when last seen does its group go first, alone, so that a refusal there holds no hits
//! elsewhere. Whatever was granted to a call that is refused in the end is given back by receipt. So
//! what is admitted never exceeds any limit, and near one a call may be refused because another
//! holds hits for a round trip.
//!
//! Pure: sends nothing, asks no clock.

use smallvec::SmallVec;

use super::args::is_debt;
use super::seen::Nearness;
use crate::domain::{Accounting, Answer, Check, Op, Receipt, Role, Verdict};

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

/// What is left to send after the first group: everything, or, where that refused the call, only
/// what takes effect whatever becomes of it.
pub(super) fn rest(checks: &[Check<'_>], groups: Groups, first: usize, refused: bool) -> Groups {
    let mut rest: Groups =
        groups.into_iter().enumerate().filter(|(n, _)| *n != first).map(|(_, g)| g).collect();
    if refused {
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
            *outcome = outcome.undone(check.limit.capacity());
        }
    }
    receipts
}

/// Takes effect whatever becomes of the call: a give-back, a debt.
fn stands(check: &Check<'_>) -> bool {
    matches!(check.op, Op::GiveBack { .. }) || is_debt(check)
}
