//! Plans calls whose counters are in several hash slots of a cluster: groups checks by slot, and
//! combines the answers. `node_scripts` groups checks by node instead.
//!
//! Each group is decided atomically. All groups are sent together. If one rejects the call, the charges
//! in the others are refunded, using their receipts. No limit ever admits too many hits, but near a
//! limit, a call may be rejected because of charges that another call refunds one round trip later. If
//! a group is not answered, the charges in the others are kept. The fallback then either admits the
//! call or refunds those charges.
//!
//! No function here does I/O. Not here: sending the groups (`multi_part`).

use std::collections::HashMap;

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

impl SlotGroup {
    /// Creates a group of one check. `check` is the index of the check in the call.
    pub(super) fn new(slot: u16, check: usize) -> SlotGroup {
        let checks = SmallVec::from_iter([check]);
        SlotGroup { slot, spans_slots: false, is_by_node: false, checks }
    }
}

pub(super) type SlotGroups = SmallVec<[SlotGroup; 4]>;

/// Groups checks by the hash slot of their counters. The groups are in the order of their first
/// check.
pub(super) fn group_by_slot(checks: &[Check<'_>], slot: impl Fn(&Check<'_>) -> u16) -> SlotGroups {
    let mut groups = SlotGroups::new();
    let mut index = GroupIndex::default();
    for (at, check) in checks.iter().enumerate() {
        let slot = slot(check);
        match index.find_or_add(slot, |place| groups.get(place).map(|group: &SlotGroup| group.slot))
        {
            Some(place) => groups[place].checks.push(at),
            None => groups.push(SlotGroup::new(slot, at)),
        }
    }
    groups
}

/// Maximum number of groups that are searched linearly, which is faster than hashing for so few
/// groups.
const LINEAR_SEARCH_MAX: usize = 16;

/// Index of the groups of a call by hash slot or by node. A lookup takes constant time.
#[derive(Debug, Default)]
pub(super) struct GroupIndex {
    positions: HashMap<u16, usize>,
    group_count: usize,
}

impl GroupIndex {
    /// Returns the position of a slot's group. If the slot has no group, adds one to the index and
    /// returns `None`; the caller must then append that group to its list. `slot_at` returns the
    /// slot of the group at a position.
    pub(super) fn find_or_add(
        &mut self,
        slot: u16,
        slot_at: impl Fn(usize) -> Option<u16>,
    ) -> Option<usize> {
        let searched = self.group_count.min(LINEAR_SEARCH_MAX);
        let found = (0..searched)
            .find(|place| slot_at(*place) == Some(slot))
            .or_else(|| self.positions.get(&slot).copied());
        if found.is_none() {
            if self.group_count >= LINEAR_SEARCH_MAX {
                self.positions.insert(slot, self.group_count);
            }
            self.group_count += 1;
        }
        found
    }
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

    /// Returns a hash slot for tests: the counter's identity divided by 10.
    fn slot_by_tens(check: &Check<'_>) -> u16 {
        u16::try_from(check.key.identity / 10).unwrap()
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
        let limit = limit(9, Charge::Admitted);
        let checks = [21, 11, 22, 31, 12].map(|identity| take(identity, &limit));
        let groups = group_by_slot(&checks, slot_by_tens);
        assert_eq!(check_indices(&groups), [vec![0, 2], vec![1, 4], vec![3]]);
    }

    #[test]
    fn grouping_compares_a_constant_number_of_slots_per_check() {
        let compared = std::cell::Cell::new(0);
        for count in [256_u16, 1_024, 2_048] {
            compared.set(0);
            let mut index = GroupIndex::default();
            let slot_at = |place: usize| {
                compared.set(compared.get() + 1);
                u16::try_from(place).ok()
            };
            for slot in 0..count {
                assert_eq!(index.find_or_add(slot, slot_at), None, "{slot} is new");
            }
            for slot in 0..count {
                assert_eq!(index.find_or_add(slot, slot_at), Some(usize::from(slot)));
            }
            let most = 2 * usize::from(count) * LINEAR_SEARCH_MAX;
            assert!(compared.get() <= most, "{} for {count} checks", compared.get());
        }
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
