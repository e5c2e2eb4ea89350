//! Ledger of the hits that the remote store does not know of, or knows too many of. The local store
//! holds it.
//!
//! - *Mirror:* each charge of the remote store is also charged to a local counter, under this replica's
//!   share of the limit. That counter decides when the remote store does not answer.
//! - *Own charges:* all hits that this replica has charged, to either store, under the full limit. They
//!   count while the remote store may lack charges (`missing_charges`). With a single replica, the
//!   mirror's counters are those of own charges, too. With several, each counter has a second one under
//!   a separate key, because the share of a bucket refills more slowly than the whole bucket.
//! - *Late charges:* hits to charge to the remote store in the background (`late_charges`).
//! - *Over-admission:* an upper bound on the hits admitted beyond their limits (`over_admission`).
//! - *Refunds:* charges that the remote store is to refund in the background (`background_refunds`).
//!
//! Not here: when to use it (`own_limits`, `fallback`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::late_charges::LateCharges;
use super::merge::LocalChecks;
use super::missing_charges::MissingCharges;
use super::over_admission::OverAdmission;
use super::replica_limits::{ReplicaLimit, ReplicaLimits};
use super::stack_stats::StackStats;
use crate::domain::{
    Algorithm, Answer, Call, Check, CounterKey, Hits, Limit, Micros, Op, Outcome, Receipt, Role,
    Verdict,
};
use crate::store::LocalStore;
use crate::store::owned_tasks::OwnedTasks;

/// XOR mask that converts the identity of a counter into the identity of its second counter, which
/// counts this replica's own charges. Identities are keyed hashes, so any nonzero mask works.
const SECOND_COUNTER_MASK: u128 = 0x5bd1_e995_9e37_79b9_7f4a_7c15_f39c_c060;

/// Outcome of each check of a call against the hits charged by this replica alone; `None` for
/// checks that are not decided against these hits.
pub(super) type OwnOutcomes = SmallVec<[Option<Outcome>; 4]>;

/// Ledger of one of several replicas.
#[derive(Debug)]
pub(super) struct Ledger<L> {
    pub(super) local: L,
    /// This replica's share of each limit.
    pub(super) shares: ReplicaLimits,
    pub(super) missing: MissingCharges,
    over_admission: OverAdmission,
    pub(super) late_charges: LateCharges,
    /// Refunds in progress on the remote store.
    pub(super) refunds: OwnedTasks,
    stats: Arc<StackStats>,
}

impl<L: LocalStore> Ledger<L> {
    pub(super) fn new(local: L, replicas: u32, stats: Arc<StackStats>) -> Self {
        Ledger {
            local,
            shares: ReplicaLimits::new(replicas),
            missing: MissingCharges::default(),
            over_admission: OverAdmission::default(),
            late_charges: LateCharges::default(),
            refunds: OwnedTasks::default(),
            stats,
        }
    }

    /// Returns whether the counters of this replica's own charges are separate from the local counters
    /// that decide calls.
    fn has_separate_counters(&self) -> bool {
        !self.shares.fraction().is_whole()
    }

    /// Records the number of times that the remote store may have lost counters.
    pub(super) fn record_losses(&self, losses: u64, now: Micros) {
        if losses > 0 && self.missing.record_losses(losses, now) {
            self.over_admission.record_loss(now);
        }
    }

    /// Returns whether any check of a call must also pass against the hits charged by this replica
    /// alone, because the remote store may lack charges.
    pub(super) fn may_lack_charges(&self, call: &Call<'_>) -> bool {
        self.missing.may_exist(call.now)
            && call.checks.iter().any(|check| self.must_fit_own_charges(check, call.now))
    }

    fn must_fit_own_charges(&self, check: &Check<'_>, now: Micros) -> bool {
        !check.is_refund() && counts_hits(check.limit) && self.missing.affect(check.limit, now)
    }

    /// Charges the checks of a call that must fit own charges, before the remote store is asked.
    pub(super) fn charge_own(&self, call: &Call<'_>) -> OwnOutcomes {
        let decide = |check: &Check<'_>| {
            self.must_fit_own_charges(check, call.now)
                .then(|| self.local.decide_one(&self.to_own(check), call.now))
        };
        let own: OwnOutcomes = call.checks.iter().map(decide).collect();
        let refused = own.iter().flatten().filter(|own| own.verdict == Verdict::Refuse).count();
        self.stats.refused_by_own_charges.fetch_add(refused as u64, Ordering::Relaxed);
        own
    }

    /// Refunds the own charges of checks that the remote store did not charge. Returns, for each
    /// check, whether its own charge remains.
    pub(super) async fn confirm_own(
        &self,
        call: &Call<'_>,
        own: &OwnOutcomes,
        answers: &[Answer],
    ) -> SmallVec<[bool; 4]> {
        let mut receipts = Vec::new();
        let mut is_counted: SmallVec<[bool; 4]> = SmallVec::new();
        for ((check, own), answer) in call.checks.iter().zip(own).zip(answers) {
            let is_charged =
                matches!(answer, Answer::Decided(outcome) if outcome.charged > Hits::ZERO);
            let receipt = own.and_then(|own| Receipt::for_check(&self.to_own(check), &own));
            is_counted.push(is_charged && receipt.is_some());
            if !is_charged {
                receipts.extend(receipt);
            }
        }
        // Of two charges to one counter, the later one is refunded first.
        receipts.reverse();
        if !receipts.is_empty() {
            self.local.refund(&receipts).await;
        }
        is_counted
    }

    /// Applies the remote store's charges, refunds, and blocks to the local counters. `is_remote` returns
    /// whether the remote store answered the check at an index. For each check, `is_counted` states
    /// whether its own charge is already made; empty if none is.
    pub(super) fn mirror(
        &self,
        call: &Call<'_>,
        answers: &[Answer],
        is_remote: impl Fn(usize) -> bool,
        is_counted: &[bool],
    ) {
        for (at, (check, answer)) in call.checks.iter().zip(answers).enumerate() {
            let Answer::Decided(Outcome { charged, taken, verdict, retry_after, .. }) = *answer
            else {
                continue;
            };
            if verdict == Verdict::Refuse
                && is_remote(at)
                && check.starts_block()
                && let (Some(wait), Some(length)) = (retry_after, check.limit.block_length())
            {
                // The later of the block's end and the limit's own wait. The latter refuses, too.
                self.local.block(check, wait.min(length), call.now);
            }
            let is_charged = charged > Hits::ZERO || check.is_hold() && taken.is_some();
            if !is_remote(at) || !check.comes_first() && !is_charged {
                continue;
            }
            if !check.comes_first() && check.role != Role::Shadow {
                self.over_admission.record_charge(charged, check.limit);
            }
            let is_counted = is_counted.get(at).is_some_and(|is_counted| *is_counted);
            if self.has_separate_counters() || !is_counted {
                let share = self.shares.get(check.limit);
                let (limit, role, may_block) = (share.limit(), Role::Shadow, false);
                let mirrored = Check { limit, role, may_block, ..*check };
                self.apply(&mirrored, charged, call.now);
            }
            if self.has_separate_counters() && !is_counted {
                self.apply_to_own(check, charged, call.now);
            }
        }
    }

    /// Decides the given checks on the local store, under this replica's share of each limit. With
    /// `may_block`, refusals block their keys in this replica.
    pub(super) fn decide_locally(
        &self,
        call: &Call<'_>,
        local_checks: &LocalChecks,
        may_block: bool,
    ) -> Vec<Answer> {
        let shares: SmallVec<[ReplicaLimit<'_>; 4]> =
            local_checks.iter().map(|(at, _)| self.shares.get(call.checks[*at].limit)).collect();
        let each = local_checks.iter().zip(&shares);
        let checks: SmallVec<[Check<'_>; 4]> = each
            .map(|((at, role), share)| Check {
                limit: share.limit(),
                role: *role,
                may_block: may_block && call.checks[*at].may_block,
                ..call.checks[*at]
            })
            .collect();
        let mut each = self.local.decide(&Call { checks: &checks, ..*call });
        for ((at, _), answer) in local_checks.iter().zip(&mut each) {
            if let Answer::Decided(outcome) = answer {
                let check = &call.checks[*at];
                if self.has_separate_counters()
                    && (check.is_refund() || outcome.charged > Hits::ZERO)
                {
                    self.apply_to_own(check, outcome.charged, call.now);
                }
                // The remote store must never see a receipt of the local store.
                outcome.taken = None;
            }
        }
        each
    }

    /// Records the hits of an admitted call that the remote store may not have charged, because it
    /// did not answer their checks. Ignores shadow checks.
    pub(super) fn record_unconfirmed(&self, call: &Call<'_>, is_remote: impl Fn(usize) -> bool) {
        for (at, check) in call.checks.iter().enumerate() {
            let (Op::Take { cost } | Op::Hold { cost, .. }) = check.op else { continue };
            if !is_remote(at) && check.role != Role::Shadow {
                self.over_admission.record_unconfirmed_charge(check.limit, call.now);
                self.stats.admitted_hits.fetch_add(cost.0, Ordering::AcqRel);
            }
        }
    }

    /// Returns an upper bound on the number of hits that this replica has admitted beyond the
    /// limits and that may still affect a limit. The remote store may not have charged these hits,
    /// or may have charged and then lost them.
    pub(super) fn over_admitted_max(&self, now: Micros) -> u64 {
        self.over_admission.update_hits_max(&self.stats.admitted_hits, now)
    }

    /// Waits until no refund is in progress, and no late charge waits or is in flight.
    pub(super) async fn wait_until_idle(&self) {
        self.refunds.wait_until_done().await;
        self.late_charges.tasks.wait_until_done().await;
    }

    /// Discards what has expired. Must be called every second.
    pub(super) fn expire(&self, now: Micros) {
        self.over_admission.expire_charges(now);
        self.over_admitted_max(now);
    }

    /// Returns a shadow copy of `check`, which never causes a rejection. Its counter contains only
    /// the hits that this replica has charged.
    fn to_own<'a>(&self, check: &Check<'a>) -> Check<'a> {
        let mask = if self.has_separate_counters() { SECOND_COUNTER_MASK } else { 0 };
        let key = CounterKey { identity: check.key.identity ^ mask, ..check.key };
        Check { key, role: Role::Shadow, may_block: false, ..*check }
    }

    /// Applies a refund, or the charge of a decided check, to the counter of own charges.
    fn apply_to_own(&self, check: &Check<'_>, charged: Hits, now: Micros) {
        if counts_hits(check.limit) {
            self.apply(&self.to_own(check), charged, now);
        }
    }

    /// Applies a refund, a settle, a hold, or the charge of a decided check to a local counter. If the
    /// limit has fewer hits left, charges only those, and holds nothing.
    fn apply(&self, check: &Check<'_>, charged: Hits, now: Micros) {
        if check.comes_first() || check.is_hold() {
            self.local.decide_one(check, now);
            return;
        }
        let take = |cost| Check { op: Op::Take { cost }, ..*check };
        let here = self.local.decide_one(&take(charged), now);
        if here.charged == Hits::ZERO && here.available > Hits::ZERO {
            self.local.decide_one(&take(here.available), now);
        }
    }
}

/// Returns whether this replica counts its own charges under a limit. Returns false for a
/// concurrency limit, because another replica may release a slot that this replica has charged, and
/// likewise for holds.
fn counts_hits(limit: &Limit) -> bool {
    match limit.algorithm {
        _ if limit.reserve.is_some() => false,
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_) => true,
        Algorithm::Concurrency(_) => false,
    }
}
