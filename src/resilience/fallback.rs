//! A remote store with a local one behind it: every call is answered in time.
//!
//! The remote store is asked first. What it does not answer is settled here (`settle`): locally, with
//! this replica's share of the limit, or as the rule says. The local store is kept warm: whatever the
//! remote one charges is charged there too, so that going over to it grants no fresh burst. All
//! replicas together admit no more during an outage than the larger of the limit and their number.
//!
//! What was admitted locally is not carried over to the remote store when it is back, which then
//! admits what it has left. So a window in which the store was away, however often, admits up to
//! the limit and that on top: twice the limit, as a rule. A process that is starved of CPU makes such outages by itself: calls
//! overrun their budget though the store is well.
//!
//! Not here: why the remote store is slow or gone, how long it is waited for (`deadline`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::degraded::{Degraded, Reason};
use super::in_flight_limit;
use super::in_flight_limit::InFlightLimit;
use super::merge::{MergeResult, Places, settle};
use super::replica_limits::{ReplicaLimit, ReplicaLimits};
use super::store_override::StoreOverride;
use crate::domain::{
    Answer, Answers, Call, Check, Executed, Fraction, Micros, Op, Receipt, Role, Source,
};
use crate::store::{LocalStore, Store};

/// Refunds under way at a time. Each is a pipelined write; where even these do not get away the
/// store is gone, and what is dropped only makes counters stricter until they refill.
const GIVE_BACKS_MAX: usize = 1_024;

/// How a remote store is stood in for.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    /// How many replicas share the limits; at least 1. Each admits its share alone.
    pub replicas: u32,
    /// Calls in flight; above it they are answered locally.
    pub in_flight_max: u32,
    /// How old one of them may be; nobody enters behind an older one, but is answered locally.
    pub age_max: Micros,
}

impl Default for StandIn {
    fn default() -> Self {
        StandIn {
            replicas: 1,
            in_flight_max: in_flight_limit::IN_FLIGHT_MAX,
            age_max: in_flight_limit::AGE_MAX,
        }
    }
}

/// Counts of what went on; read by telemetry, never reset. Calls are counted by reason in
/// [`Degraded`].
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls admitted without the remote store's answer to every check.
    pub admitted: AtomicU64,
    /// Hits of such calls that the remote store does not know of for certain: so many may have
    /// been admitted beyond limits.
    pub admitted_hits: AtomicU64,
    /// Such calls refused.
    pub refused: AtomicU64,
    /// Such calls answered with an error, because a rule wants that.
    pub unavailable: AtomicU64,
    /// Charges sent back, because their call did not pass without the remote store's every answer.
    pub refunded: AtomicU64,
    /// Charges that were not sent back for want of room: their counters are stricter for a while.
    pub refunds_lost: AtomicU64,
}

/// The remote store with the local one behind it.
#[derive(Debug)]
pub struct Fallback<S, L> {
    remote: Arc<S>,
    local: L,
    shares: ReplicaLimits,
    gate: InFlightLimit,
    away: StoreOverride,
    degraded: Degraded,
    counters: Counters,
    /// What `admitted_hits` was when the present outage began.
    admitted_before: AtomicU64,
    replicas: u32,
    giving_back: Arc<AtomicUsize>,
}

impl<S: Store, L: LocalStore> Fallback<S, L> {
    /// Asks `remote`, and `local` where it does not answer.
    pub fn new(remote: S, local: L, stand_in: StandIn) -> Self {
        Fallback {
            remote: Arc::new(remote),
            local,
            shares: ReplicaLimits::new(Fraction::one_of(stand_in.replicas)),
            gate: InFlightLimit::new(stand_in.in_flight_max, stand_in.age_max),
            away: StoreOverride::default(),
            degraded: Degraded::default(),
            counters: Counters::default(),
            admitted_before: AtomicU64::new(0),
            replicas: stand_in.replicas,
            giving_back: Arc::default(),
        }
    }

    /// The remote store.
    pub fn remote(&self) -> &S {
        &self.remote
    }

    /// The local store.
    pub fn local(&self) -> &L {
        &self.local
    }

    /// The switch that makes the remote store count as away.
    pub fn away(&self) -> &StoreOverride {
        &self.away
    }

    /// The calls that were not answered by the remote store, and the outage they make.
    pub fn degraded(&self) -> &Degraded {
        &self.degraded
    }

    /// Calls in flight at the remote store.
    pub fn in_flight(&self) -> u32 {
        self.gate.in_flight()
    }

    /// How many replicas share the limits, as this one was told.
    pub fn replicas(&self) -> u32 {
        self.replicas
    }

    /// How many hits this replica has admitted beyond limits at most, in the present outage: all
    /// that the remote store does not know of. Zero without an outage.
    pub fn over_admitted_max(&self, now: Micros) -> u64 {
        let so_far = self.counters.admitted_hits.load(Ordering::Relaxed);
        let before = self.admitted_before.load(Ordering::Relaxed);
        self.degraded.outage(now).map_or(0, |_| so_far.saturating_sub(before))
    }

    /// What went on so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The remote store's answers, or why it was not even asked.
    async fn ask(&self, call: &Call<'_>) -> Result<Answers, Reason> {
        if self.away.is_away(call.now) {
            return Err(Reason::Rehearsed);
        }
        // Held until the answer is here, or nobody waits for it any more.
        let _in_flight = self.gate.enter(call.now).ok_or(Reason::Shed)?;
        Ok(self.remote.apply(call).await)
    }

    /// Charges the local store with what the remote one charged to these checks, as far as there is
    /// anything left, and returns to it what callers returned there.
    fn note<'a>(&self, checks: impl Iterator<Item = (&'a Check<'a>, &'a Answer)>, now: Micros) {
        for (check, answer) in checks {
            let Answer::Decided(outcome) = answer else { continue };
            let own = self.shares.of(check.limit);
            let noted = Check { limit: own.limit(), role: Role::Shadow, ..*check };
            match check.op {
                Op::Refund { .. } => {
                    self.local.answer_one(&noted, now);
                }
                Op::Take { .. } | Op::Peek if outcome.charged.0 > 0 => {
                    let take = |cost| Check { op: Op::Take { cost }, ..noted };
                    let here = self.local.answer_one(&take(outcome.charged), now);
                    // More than this replica's share: then all of the share is used.
                    if here.charged.0 == 0 && here.available.0 > 0 {
                        self.local.answer_one(&take(here.available), now);
                    }
                }
                Op::Take { .. } | Op::Peek => {}
            }
        }
    }

    /// The local store's answers for these checks, with this replica's share of each limit.
    fn decide_locally(&self, call: &Call<'_>, places: &Places) -> Vec<Answer> {
        let shares: SmallVec<[ReplicaLimit<'_>; 4]> =
            places.iter().map(|(at, _)| self.shares.of(call.checks[*at].limit)).collect();
        let checks: SmallVec<[Check<'_>; 4]> = places
            .iter()
            .zip(&shares)
            .map(|((at, role), share)| Check {
                limit: share.limit(),
                role: *role,
                ..call.checks[*at]
            })
            .collect();
        let mut each = self.local.answer(&Call { checks: &checks, ..*call });
        for answer in &mut each {
            if let Answer::Decided(outcome) = answer {
                // A receipt of the local store means nothing to the remote one.
                outcome.taken = None;
            }
        }
        each
    }

    /// Settles a call that the remote store did not answer whole.
    fn stand_in(&self, call: &Call<'_>, mut answers: Answers, reason: Reason) -> Answers {
        if self.degraded.note(reason, call.now) {
            let so_far = self.counters.admitted_hits.load(Ordering::Relaxed);
            self.admitted_before.store(so_far, Ordering::Relaxed);
        }
        let heard: SmallVec<[bool; 16]> =
            answers.each.iter().map(|answer| answer.outcome().is_some()).collect();
        let settled = settle(call, &mut answers.each, |places| self.decide_locally(call, places));
        let all = call.checks.iter().zip(&answers.each).zip(&heard);
        self.note(all.filter(|(_, heard)| **heard).map(|(both, _)| both), call.now);
        let counter = match settled {
            MergeResult::Unavailable { receipts } => {
                self.send_back(receipts);
                &self.counters.unavailable
            }
            MergeResult::Decided { admitted, receipts } => {
                self.send_back(receipts);
                if admitted {
                    let hits = unheard_hits(call.checks, &heard);
                    self.counters.admitted_hits.fetch_add(hits, Ordering::Relaxed);
                }
                answers.source = match reason {
                    Reason::Shed => Source::Shed,
                    Reason::Unreachable | Reason::Late | Reason::Rehearsed => Source::Local,
                };
                if admitted { &self.counters.admitted } else { &self.counters.refused }
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answers
    }

    /// Gives charges back in the background: the caller has its answer already.
    fn send_back(&self, receipts: Vec<Receipt>) {
        if receipts.is_empty() {
            return;
        }
        let many = receipts.len() as u64;
        let under_way = self.giving_back.fetch_add(1, Ordering::Relaxed);
        let (Ok(runtime), true) = (Handle::try_current(), under_way < GIVE_BACKS_MAX) else {
            self.giving_back.fetch_sub(1, Ordering::Relaxed);
            self.counters.refunds_lost.fetch_add(many, Ordering::Relaxed);
            return;
        };
        self.counters.refunded.fetch_add(many, Ordering::Relaxed);
        let (remote, giving_back) = (Arc::clone(&self.remote), Arc::clone(&self.giving_back));
        runtime.spawn(async move {
            remote.refund(&receipts).await;
            giving_back.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// The hits that were taken without the remote store's word.
fn unheard_hits(checks: &[Check<'_>], heard: &[bool]) -> u64 {
    let hits = |(check, heard): (&Check<'_>, &bool)| match check.op {
        Op::Take { cost } if !heard && check.role != Role::Shadow => cost.0,
        Op::Take { .. } | Op::Peek | Op::Refund { .. } => 0,
    };
    checks.iter().zip(heard).map(hits).fold(0, u64::saturating_add)
}

impl<S: Store, L: LocalStore> Store for Fallback<S, L> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let answers = match self.ask(call).await {
            Ok(answers) => answers,
            Err(reason) => {
                let each = vec![Answer::Unanswered { executed: Executed::No }; call.checks.len()];
                return self.stand_in(call, Answers { each, source: Source::Local }, reason);
            }
        };
        let unheard = answers.each.iter().filter_map(|answer| match answer {
            Answer::Unanswered { executed: Executed::Unknown } => Some(Reason::Late),
            Answer::Unanswered { executed: Executed::No } => Some(Reason::Unreachable),
            Answer::Decided(_) | Answer::NotAsked => None,
        });
        if let Some(reason) = unheard.max_by_key(|reason| *reason as u8) {
            return self.stand_in(call, answers, reason);
        }
        self.degraded.answered(call.now);
        self.note(call.checks.iter().zip(&answers.each), call.now);
        answers
    }

    /// The local store is not told: it stays as strict as it is until it refills.
    async fn refund(&self, receipts: &[Receipt]) {
        self.remote.refund(receipts).await;
    }
}
