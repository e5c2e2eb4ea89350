//! Plans calls whose counters are in several hash slots of a cluster: groups checks by node or slot,
//! and combines the answers.
//!
//! Each group is decided atomically. All groups are sent together. If one rejects the call, the charges
//! in the others are refunded, using their receipts. No limit ever admits too many hits, but near a
//! limit, a call may be rejected because of charges that another call refunds one round trip later. If
//! a group is not answered, the charges in the others are kept. The fallback then either admits the
//! call or refunds those charges.
//!
//! No function here does I/O. Not here: sending the groups (`multi_part`), for which slots a node script
//! is used (`node_scripts`).

use smallvec::SmallVec;

use super::script::reply::CounterStatus;
use crate::domain::{Accounting, Admission, Answer, Check, Receipt, Role};

/// Group of checks that are decided together. Their counters are in the same hash slot or, with
/// node scripts, on the same node. `checks` contains the index of each check in the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotGroup {
    /// Hash slot of the first check's counter.
    pub(super) slot: u16,
    /// Whether the counters are in several hash slots, so that only a node script can decide the
    /// checks.
    pub(super) spans_slots: bool,
    /// Whether node scripts may be used for the slots of the counters.
    pub(super) is_by_node: bool,
    pub(super) checks: SmallVec<[usize; 4]>,
}

pub(super) type SlotGroups = SmallVec<[SlotGroup; 4]>;

/// Groups checks by node, and those whose slot has no node by hash slot. The groups are in the order
/// of their first check. `slots` are the indices of the checks in the call, and the hash slots of their
/// counters. `node` returns the node that holds a slot, or `None` if no node script may be used for it.
pub(super) fn group_checks(
    slots: impl Iterator<Item = (usize, u16)>,
    node: impl Fn(u16) -> Option<u16>,
) -> SlotGroups {
    let owner = |slot| node(slot).map_or(GroupOwner::Slot(slot), GroupOwner::Node);
    // Sorted, because a call may have 2,048 checks, each in a slot of its own.
    let mut owned: SmallVec<[(GroupOwner, usize, u16); 16]> =
        slots.map(|(at, slot)| (owner(slot), at, slot)).collect();
    owned.sort_unstable();
    let groups = owned.chunk_by(|(one, ..), (next, ..)| one == next).map(|group| {
        let (owner, _, slot) = group[0];
        SlotGroup {
            slot,
            spans_slots: group.iter().any(|(_, _, other)| *other != slot),
            is_by_node: matches!(owner, GroupOwner::Node(_)),
            checks: group.iter().map(|(_, at, _)| *at).collect(),
        }
    });
    let mut groups: SlotGroups = groups.collect();
    groups.sort_unstable_by_key(|group| group.checks[0]);
    groups
}

/// Node or hash slot that the counters of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GroupOwner {
    Node(u16),
    Slot(u16),
}

/// Returns the check as it is passed to the script for its hash slot.
///
/// Quota checks are passed as shadow checks. Each script receives only the checks of one slot, so it
/// cannot decide a quota group that spans several slots. The script charges the shadow checks unless a
/// required check in the same slot refuses. [`is_rejected`] then combines the answers of all slots.
pub(super) fn check_to_send<'a>(check: &Check<'a>) -> Check<'a> {
    Check { role: if check.is_quota() { Role::Shadow } else { check.role }, ..*check }
}

/// Returns whether the answers received so far reject the call.
pub(super) fn is_rejected(checks: &[Check<'_>], answers: &[Answer]) -> bool {
    Admission::from_answers(checks, answers).is_rejected()
}

/// For each check, the status of its counter without the charges of the call; `None` if no reply
/// contained it.
pub(super) type UnchargedStatuses = SmallVec<[Option<CounterStatus>; 8]>;

/// Updates a rejected call's answers to the state after the refund. Returns the receipts to refund.
pub(super) fn refund_answers(
    checks: &[Check<'_>],
    accounting: Accounting,
    answers: &mut [Answer],
    uncharged: &UnchargedStatuses,
) -> Vec<Receipt> {
    let receipts = Receipt::for_rejected_call(checks, accounting, answers);
    for (answer, status) in answers.iter_mut().zip(uncharged) {
        if let (Answer::Decided(outcome), Some(status)) = (answer, status) {
            (outcome.available, outcome.reset_after) = (status.available, status.reset_after);
        }
    }
    receipts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{
        Algorithm, Bucket, Charge, ChargeRecord, Hits, Limit, Micros, Outcome, Receipt, Refill,
        Verdict, fixtures,
    };

    fn limit(burst: u64, charge: Charge) -> Arc<Limit> {
        let bucket = Bucket {
            burst: Hits(burst),
            debt_burst: Hits(burst),
            refill: Refill::Arrival { emission: Micros(10) },
            floor: Hits::ZERO,
            leaky: false,
        };
        Arc::new(Limit { charge, ..fixtures::limit(Algorithm::Bucket(bucket)) })
    }

    fn take(identity: u128, limit: &Arc<Limit>) -> Check<'_> {
        fixtures::take(identity, 1, limit)
    }

    fn decided_answer(verdict: Verdict, charged: u64, available: u64) -> Answer {
        let (retry_after, reset_after) = (None, Micros::ZERO);
        let (hits, at, window) = (Hits(charged), Micros(1), Micros::ZERO);
        let taken = (charged > 0).then_some(ChargeRecord { hits, at, window, entry: 0 });
        let (charged, available) = (Hits(charged), Hits(available));
        let passed = Outcome { reset_after, ..Outcome::pass(available) };
        Answer::Decided(Outcome { verdict, charged, retry_after, taken, ..passed })
    }

    fn check_indices(groups: &SlotGroups) -> Vec<Vec<usize>> {
        groups.iter().map(|group| group.checks.to_vec()).collect()
    }

    #[test]
    fn checks_of_one_slot_are_sent_together_in_the_calls_order() {
        let slots = [2, 1, 2, 3, 1].into_iter().enumerate();
        let groups = group_checks(slots, |_| None);
        assert_eq!(check_indices(&groups), [vec![0, 2], vec![1, 4], vec![3]]);
    }

    #[test]
    fn checks_are_grouped_by_node_and_those_without_a_node_by_slot() {
        let slots = [3, 1, 4, 3, 1].into_iter().enumerate();
        // Slots 3 and 4 are on node 1, which is not slot 1.
        let groups = group_checks(slots, |slot| (slot >= 3).then_some(1));
        assert_eq!(check_indices(&groups), [vec![0, 2, 3], vec![1, 4]]);
        let kinds = groups.iter().map(|group| (group.slot, group.spans_slots, group.is_by_node));
        assert_eq!(kinds.collect::<Vec<_>>(), [(3, true, true), (1, false, false)]);
    }

    #[test]
    fn quota_checks_reject_the_call_only_if_all_of_them_refuse() {
        let limit = limit(5, Charge::Admitted);
        let quota = |number: u16| {
            let identity = 10 * (u128::from(number) + 1);
            Check { role: Role::Quota(number), ..take(identity, &limit) }
        };
        let checks = [quota(0), quota(1), take(30, &limit)];
        let (no, yes) =
            (decided_answer(Verdict::Refuse, 0, 0), decided_answer(Verdict::Pass, 1, 4));
        assert!(!is_rejected(&checks, &[no, yes, yes]));
        assert!(!is_rejected(&checks, &[no, Answer::NotAsked, yes]), "not known yet");
        assert!(is_rejected(&checks, &[no, no, yes]));
        assert!(is_rejected(&checks, &[yes, yes, no]));
    }

    #[test]
    fn a_rejected_call_keeps_its_debts_and_refunds_the_rest() {
        let (plain, debt) = (limit(5, Charge::Admitted), limit(5, Charge::Always));
        let checks = [take(10, &plain), take(20, &debt), take(30, &plain)];
        let mut answers = [
            decided_answer(Verdict::Pass, 1, 4),
            decided_answer(Verdict::Pass, 1, 4),
            decided_answer(Verdict::Refuse, 0, 0),
        ];
        let receipts = Receipt::for_rejected_call(&checks, Accounting::AllOrNothing, &mut answers);
        assert_eq!(receipts.len(), 1);
        assert_eq!(receipts[0].key, checks[0].key);
        assert_eq!(answers[0], decided_answer(Verdict::Pass, 0, 5));
        assert_eq!(answers[1], decided_answer(Verdict::Pass, 1, 4));
    }
}
