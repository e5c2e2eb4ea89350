//! Fallback to a local store, so that every call is answered in time although the remote store may
//! not respond.
//!
//! The remote store is asked first. `merge` decides the checks that it does not answer: on the
//! local store with this replica's share of the limit, or as the rule's `on_store_failure` says.
//! Every charge on the remote store is also charged to the local store, so that an outage does not
//! start with a fresh burst. During an outage, all replicas together admit at most the limit or one
//! hit each, whichever is larger.
//!
//! Hits admitted locally are not carried over to the remote store. After an outage, the remote
//! store admits what it had left. So a window with one outage or several admits up to twice the
//! limit: once by the remote store and once by the replicas. A process that is starved of CPU
//! causes such outages by itself, because its calls exceed their budget although the store is
//! healthy.
//!
//! Not here: detecting why the remote store does not respond (`store::redis::client`), how long
//! calls wait for it (`deadline`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::merge::{LocalChecks, MergeResult, merge};
use super::outage::{FallbackReason, Outage, OutageTracker};
use super::replica_limits::{ReplicaLimit, ReplicaLimits};
use super::store_override::StoreOverride;
use crate::domain::{
    Answer, Answers, Call, Check, ExecutionStatus, Fraction, Micros, Op, Receipt, Role, Source,
};
use crate::store::{LocalStore, SharedStore, Store};

/// Maximum number of concurrent refunds; further refunds are dropped. A refund is one pipelined
/// write, so this many are in progress only if the store is unavailable. If a refund is dropped,
/// the affected counters count too many hits until they refill.
const REFUNDS_MAX: usize = 1_024;

/// Configuration of [`Fallback`].
#[derive(Clone, Copy, Debug)]
pub struct FallbackConfig {
    /// Number of replicas that share the limits; at least 1. In an outage, each replica enforces
    /// its share of every limit.
    pub replicas: u32,
}

impl Default for FallbackConfig {
    fn default() -> Self {
        FallbackConfig { replicas: 1 }
    }
}

/// Statistics of the fallback, as totals since the start. Unanswered calls by reason are counted
/// by [`OutageTracker`].
#[derive(Debug, Default)]
pub struct FallbackStats {
    /// Number of calls admitted although the remote store did not answer every check.
    pub admitted: AtomicU64,
    /// Number of hits in the calls counted by `admitted` that the remote store may not have
    /// charged. This is an upper bound of the hits admitted beyond the limits.
    pub admitted_hits: AtomicU64,
    /// Number of calls rejected although the remote store did not answer every check.
    pub refused: AtomicU64,
    /// Number of calls answered with an error, because a rule has `on_store_failure: error`.
    pub unavailable: AtomicU64,
    /// Number of charges refunded on the remote store, because their call was rejected or failed.
    pub refunded: AtomicU64,
    /// Number of charges whose refund was dropped because too many refunds were in progress. The
    /// affected counters count too many hits until they refill.
    pub refunds_lost: AtomicU64,
}

/// Store that asks a remote store and falls back to a local store.
#[derive(Debug)]
pub struct Fallback<S, L> {
    remote: Arc<S>,
    local: L,
    replica_limits: ReplicaLimits,
    store_override: StoreOverride,
    outages: OutageTracker,
    stats: FallbackStats,
    /// Value of `admitted_hits` at the start of the current outage.
    admitted_before: AtomicU64,
    replicas: u32,
    refunds_in_progress: Arc<AtomicUsize>,
}

impl<S: Store, L: LocalStore> Fallback<S, L> {
    /// Creates a store that asks `remote` first, and `local` for every check that `remote` does not
    /// answer.
    pub fn new(remote: S, local: L, config: FallbackConfig) -> Self {
        Fallback {
            remote: Arc::new(remote),
            local,
            replica_limits: ReplicaLimits::new(Fraction::one_of(config.replicas)),
            store_override: StoreOverride::default(),
            outages: OutageTracker::default(),
            stats: FallbackStats::default(),
            admitted_before: AtomicU64::new(0),
            replicas: config.replicas,
            refunds_in_progress: Arc::default(),
        }
    }

    /// Returns the remote store, which is asked first.
    pub fn remote(&self) -> &S {
        &self.remote
    }

    /// Returns the local store, which decides the checks that the remote store does not answer.
    pub fn local(&self) -> &L {
        &self.local
    }

    /// Returns the switch with which an operator disables the remote store.
    pub fn store_override(&self) -> &StoreOverride {
        &self.store_override
    }

    /// Returns the tracker that counts unanswered calls and reports the current outage.
    pub fn outages(&self) -> &OutageTracker {
        &self.outages
    }

    /// Returns the configured number of replicas that share each limit.
    pub fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Returns an upper bound of the hits that this replica has admitted beyond the limits during
    /// the current outage. These are the hits that the remote store may not have charged. Returns
    /// zero if there is no outage.
    pub fn over_admitted_max(&self) -> u64 {
        let so_far = self.stats.admitted_hits.load(Ordering::Relaxed);
        let before = self.admitted_before.load(Ordering::Relaxed);
        if self.outages.is_in_outage() { so_far.saturating_sub(before) } else { 0 }
    }

    /// Returns the fallback statistics, which continue to be updated.
    pub fn stats(&self) -> &FallbackStats {
        &self.stats
    }

    /// Sends the call to the remote store. Returns its answers, or the reason why the call was not
    /// sent.
    async fn ask(&self, call: &Call<'_>) -> Result<Answers, FallbackReason> {
        if self.store_override.is_disabled() {
            return Err(FallbackReason::Rehearsed);
        }
        Ok(self.remote.apply(call).await)
    }

    /// Repeats charges and refunds of the remote store on the local store, up to this replica's
    /// share of each limit.
    fn mirror<'a>(&self, checks: impl Iterator<Item = (&'a Check<'a>, &'a Answer)>, now: Micros) {
        for (check, answer) in checks {
            let Answer::Decided(outcome) = answer else { continue };
            let own = self.replica_limits.get(check.limit);
            let mirrored = Check { limit: own.limit(), role: Role::Shadow, ..*check };
            match check.op {
                Op::Refund { .. } => {
                    self.local.decide_one(&mirrored, now);
                }
                Op::Take { .. } | Op::Peek if outcome.charged.0 > 0 => {
                    let take = |cost| Check { op: Op::Take { cost }, ..mirrored };
                    let here = self.local.decide_one(&take(outcome.charged), now);
                    // The charge exceeds the rest of this replica's share: charge the rest.
                    if here.charged.0 == 0 && here.available.0 > 0 {
                        self.local.decide_one(&take(here.available), now);
                    }
                }
                Op::Take { .. } | Op::Peek => {}
            }
        }
    }

    /// Decides checks on the local store, using this replica's share of each limit.
    fn decide_locally(&self, call: &Call<'_>, local_checks: &LocalChecks) -> Vec<Answer> {
        let shares: SmallVec<[ReplicaLimit<'_>; 4]> = local_checks
            .iter()
            .map(|(at, _)| self.replica_limits.get(call.checks[*at].limit))
            .collect();
        let checks: SmallVec<[Check<'_>; 4]> = local_checks
            .iter()
            .zip(&shares)
            .map(|((at, role), share)| Check {
                limit: share.limit(),
                role: *role,
                ..call.checks[*at]
            })
            .collect();
        let mut each = self.local.decide(&Call { checks: &checks, ..*call });
        for answer in &mut each {
            if let Answer::Decided(outcome) = answer {
                // The remote store must never see a receipt of the local store.
                outcome.taken = None;
            }
        }
        each
    }

    /// Completes a call with at least one check that the remote store did not answer.
    fn fall_back(&self, call: &Call<'_>, mut answers: Answers, reason: FallbackReason) -> Answers {
        if self.outages.record_fallback(reason, call.now) {
            let so_far = self.stats.admitted_hits.load(Ordering::Relaxed);
            self.admitted_before.store(so_far, Ordering::Relaxed);
        }
        let is_remote: SmallVec<[bool; 16]> =
            answers.each.iter().map(|answer| answer.outcome().is_some()).collect();
        let merged = merge(call, &mut answers.each, |checks| self.decide_locally(call, checks));
        let all = call.checks.iter().zip(&answers.each).zip(&is_remote);
        self.mirror(all.filter(|(_, is_remote)| **is_remote).map(|(both, _)| both), call.now);
        let counter = match merged {
            MergeResult::Unavailable { receipts } => {
                self.refund_in_background(receipts);
                &self.stats.unavailable
            }
            MergeResult::Decided { admitted, receipts } => {
                self.refund_in_background(receipts);
                if admitted {
                    let hits = unconfirmed_hits(call.checks, &is_remote);
                    self.stats.admitted_hits.fetch_add(hits, Ordering::Relaxed);
                }
                answers.source = match reason {
                    FallbackReason::Shed => Source::Shed,
                    FallbackReason::Unreachable
                    | FallbackReason::Late
                    | FallbackReason::Rehearsed => Source::Local,
                };
                if admitted { &self.stats.admitted } else { &self.stats.refused }
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answers
    }

    /// Refunds charges on the remote store in a background task, so that the caller does not wait
    /// for it.
    fn refund_in_background(&self, receipts: Vec<Receipt>) {
        if receipts.is_empty() {
            return;
        }
        let many = receipts.len() as u64;
        let in_progress = self.refunds_in_progress.fetch_add(1, Ordering::Relaxed);
        let (Ok(runtime), true) = (Handle::try_current(), in_progress < REFUNDS_MAX) else {
            self.refunds_in_progress.fetch_sub(1, Ordering::Relaxed);
            self.stats.refunds_lost.fetch_add(many, Ordering::Relaxed);
            return;
        };
        self.stats.refunded.fetch_add(many, Ordering::Relaxed);
        let (remote, refunds_in_progress) =
            (Arc::clone(&self.remote), Arc::clone(&self.refunds_in_progress));
        runtime.spawn(async move {
            remote.refund(&receipts).await;
            refunds_in_progress.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Returns the number of hits that would be charged by checks that the remote store did not
/// decide. Checks in shadow mode do not count.
fn unconfirmed_hits(checks: &[Check<'_>], is_remote: &[bool]) -> u64 {
    let hits = |(check, is_remote): (&Check<'_>, &bool)| match check.op {
        Op::Take { cost } if !is_remote && check.role != Role::Shadow => cost.0,
        Op::Take { .. } | Op::Peek | Op::Refund { .. } => 0,
    };
    checks.iter().zip(is_remote).map(hits).fold(0, u64::saturating_add)
}

impl<S: SharedStore, L: LocalStore> Fallback<S, L> {
    /// Returns the current outage, or `None` if there is none. Also logs the start and the end of
    /// an outage, so it must be called at least once a second.
    pub fn outage(&self, now: Micros) -> Option<Outage> {
        let unavailable = if self.store_override.is_disabled() {
            Some(FallbackReason::Rehearsed)
        } else {
            (!self.remote.is_available()).then_some(FallbackReason::Unreachable)
        };
        self.outages.update(now, unavailable)
    }
}

impl<S: Store, L: LocalStore> Store for Fallback<S, L> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let answers = match self.ask(call).await {
            Ok(answers) => answers,
            Err(reason) => {
                let each = vec![
                    Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
                    call.checks.len()
                ];
                return self.fall_back(call, Answers { each, source: Source::Local }, reason);
            }
        };
        let reasons = answers.each.iter().filter_map(|answer| match answer {
            Answer::Unanswered { executed: ExecutionStatus::Unknown } => Some(FallbackReason::Late),
            Answer::Unanswered { executed: ExecutionStatus::NotExecuted } => {
                Some(match answers.source {
                    Source::Shed => FallbackReason::Shed,
                    _ => FallbackReason::Unreachable,
                })
            }
            Answer::Decided(_) | Answer::NotAsked | Answer::LastKnown { .. } => None,
        });
        if let Some(reason) = reasons.max_by_key(|reason| *reason as u8) {
            return self.fall_back(call, answers, reason);
        }
        self.outages.record_success(call.now);
        self.mirror(call.checks.iter().zip(&answers.each), call.now);
        answers
    }

    /// Refunds charges only on the remote store. The local store keeps counting the refunded hits
    /// until its counters refill.
    async fn refund(&self, receipts: &[Receipt]) {
        self.remote.refund(receipts).await;
    }
}
