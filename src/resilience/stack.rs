//! Decides calls with a store that may be slow or unavailable, such as Redis, and with a local store
//! in its place.
//!
//! A call goes through these states:
//!
//! 1. *Own limits.* While the store may lack charges of this replica, a check must also pass against
//!    this replica's own charges (`own_limits`).
//! 2. *Refusals.* A check that was refused recently is refused again (`refusal_cache`).
//! 3. *Prepaid.* Hits that were charged in advance answer a check without the store (`prepaid_hits`).
//! 4. *Decide by deadline.* The store decides the other checks, if there is time left (`deadline`).
//! 5. *Learn.* Refusals and states of counters are kept for later calls (`refusal_cache`).
//! 6. *Settle.* The local store decides the checks without an answer, and is charged what the store
//!    has charged (`fallback`).
//!
//! Not here: the states themselves.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::deadline::{self, BUDGET_DEFAULT};
use super::ledger::Ledger;
use super::outage::{Outage, OutageTracker};
use super::prepaid_hits::{PrepaidHits, may_be_prepaid};
use super::refusal_cache::RefusalCache;
use super::stack_stats::StackStats;
use crate::clock::Clock;
use crate::domain::{
    Answers, Call, ExecutionStatus, FailureKind, LateFate, Lock, Micros, Receipt, Source,
};
use crate::store::delivery::unanswered;
use crate::store::owned_tasks::OwnedTasks;
use crate::store::{LocalStore, SharedStore, Store};

/// Maximum budget, one hour, which keeps the time at which it ends representable.
const BUDGET_MAX: Duration = Duration::from_secs(3_600);

/// Configuration of a [`Stack`].
#[derive(Clone, Copy, Debug)]
pub struct StackConfig {
    /// Maximum time that a call waits for the store; at most one hour. A caller's deadline can
    /// shorten it.
    pub budget: Duration,
    /// Number of replicas that share the limits; at least 1. The maximum number of prepaid hits is
    /// divided by this number. In an outage, each replica enforces its share of every limit.
    pub replicas: u32,
    /// Whether to use the refusal cache, which repeats recent refusals without a call to the store.
    pub refusal_cache: bool,
}

impl Default for StackConfig {
    fn default() -> Self {
        StackConfig { budget: BUDGET_DEFAULT, replicas: 1, refusal_cache: true }
    }
}

/// Store that calls a remote store, keeps what it learns of its counters, and falls back to a local
/// store.
#[derive(Debug)]
pub struct Stack<S, L> {
    pub(super) remote: Arc<S>,
    pub(super) ledger: Ledger<L>,
    budget: Duration,
    /// Whether an operator has disabled the remote store, to rehearse an outage.
    is_store_disabled: AtomicBool,
    /// End of the rehearsal, if there is one with an end.
    disabled_until: Lock<Option<Instant>>,
    pub(super) refusals: RefusalCache,
    prepaid: Arc<PrepaidHits<S>>,
    pub(super) outages: OutageTracker,
    pub(super) stats: Arc<StackStats>,
    /// Tasks that own calls.
    pub(super) tasks: OwnedTasks,
}

impl<S: Store, L: LocalStore> Store for Arc<Stack<S, L>> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        // Own limits.
        self.ledger.record_losses(self.remote.counter_losses(), call.now);
        let mut answers = if self.ledger.may_lack_charges(call) {
            // Boxed, so that the future of all other calls stays small.
            Box::pin(self.apply_with_own_charges(call)).await
        } else {
            // Pinned here, because awaiting the future by value would copy it.
            let answers = pin!(self.ask(call)).await;
            // Settle.
            self.settle(call, answers, &[])
        };
        if let Some(late) = answers.late.take() {
            // The caller hears the answers, and was admitted without the charges that arrive late.
            late.settle(LateFate::Keep);
        }
        answers
    }

    /// Refunds charges only on the remote store. The local store keeps counting the refunded hits
    /// until their window ends or their bucket refills.
    async fn refund(&self, receipts: &[Receipt]) {
        self.refusals.forget(receipts);
        self.remote.refund(receipts).await;
    }
}

impl<S: Store, L: LocalStore> Stack<S, L> {
    /// Lets the remote store decide a call by its deadline. Checks that it does not answer by then
    /// are unanswered.
    pub async fn ask(&self, call: &Call<'_>) -> Answers {
        match self.reply_deadline(call) {
            Ok(deadline) => {
                let call = Call { deadline: Some(deadline), ..*call };
                pin!(self.decide(&call)).await
            }
            Err(failure) => unanswered(call, ExecutionStatus::NotExecuted, failure),
        }
    }

    /// Decides a call with cached refusals, prepaid hits and the remote store. Waits for the store
    /// until the call's deadline or, without one, however long it takes.
    pub async fn decide(&self, call: &Call<'_>) -> Answers {
        // Refusals.
        let refused = self.refusals.answer(call, &self.stats);
        let checks = refused.as_ref().map_or(call.checks, |remaining| &remaining.checks);
        let rest = Call { checks, ..*call };
        let mut answers = if refused.is_some() && checks.is_empty() {
            Answers::new(Vec::new(), Source::Cached)
        } else if checks.iter().any(may_be_prepaid) {
            // Prepaid.
            pin!(self.prepaid.decide(&rest)).await
        } else {
            // Decide by deadline.
            pin!(self.remote.apply(&rest)).await
        };
        // Learn.
        self.refusals.learn(&rest, &answers.each, |check| {
            // Other replicas refund the prepaid hits that they do not spend.
            may_be_prepaid(check) || self.remote.has_transient_refusals(check)
        });
        if let Some(remaining) = refused {
            answers = remaining.complete(answers);
        }
        self.refusals.fill_in_last_known(call, &mut answers.each);
        answers
    }

    /// Returns the time until which a call waits for the remote store.
    ///
    /// # Errors
    ///
    /// Returns the reason if the call cannot be sent.
    fn reply_deadline(&self, call: &Call<'_>) -> Result<Instant, FailureKind> {
        if self.is_store_disabled() {
            return Err(FailureKind::Rehearsed);
        }
        let now = Clock::System.monotonic_now();
        let wait = deadline::wait_max(self.budget, now, call.deadline);
        if wait.is_zero() {
            self.stats.overruns.fetch_add(1, Ordering::Relaxed);
            return Err(FailureKind::Overload);
        }
        if Handle::try_current().is_err() {
            // The store's timer would panic. The runtime of a library user may have ended.
            return Err(FailureKind::NotConnected);
        }
        Ok(now + wait)
    }

    /// Creates a store that calls `remote` first, and uses `local` for every check that `remote`
    /// does not answer. `clock` measures the duration of outages. Shared with the tasks that own
    /// calls.
    pub fn new(remote: S, local: L, config: StackConfig, clock: Clock) -> Arc<Self> {
        let StackConfig { budget, replicas, refusal_cache } = config;
        let (remote, stats) = (Arc::new(remote), Arc::<StackStats>::default());
        let prepaid = PrepaidHits::new(Arc::clone(&remote), replicas, Arc::clone(&stats));
        Arc::new(Stack {
            remote,
            ledger: Ledger::new(local, replicas, Arc::clone(&stats)),
            budget: budget.min(BUDGET_MAX),
            is_store_disabled: AtomicBool::new(false),
            disabled_until: Lock::default(),
            refusals: RefusalCache::new(refusal_cache),
            prepaid,
            outages: OutageTracker::new(clock),
            stats,
            tasks: OwnedTasks::default(),
        })
    }

    /// Discards the cached refusals and prepaid hits of the previous policy. Called when the policy
    /// changes.
    pub fn retire_policy(&self) {
        self.refusals.clear();
        self.prepaid.lots.stop_spending();
    }

    /// Returns the remote store, which is called first.
    pub fn remote(&self) -> &S {
        &self.remote
    }

    /// Returns the local store, which decides the checks that the remote store does not answer.
    pub fn local(&self) -> &L {
        &self.ledger.local
    }

    /// Disables the remote store, to rehearse an outage, until [`enable_store`](Self::enable_store) is
    /// called. With `until`, [`is_rehearsal_over`](Self::is_rehearsal_over) then says when to call it.
    pub fn disable_store(&self, until: Option<Instant>) {
        *self.disabled_until.lock() = until;
        self.is_store_disabled.store(true, Ordering::Relaxed);
    }

    /// Enables the remote store again.
    pub fn enable_store(&self) {
        *self.disabled_until.lock() = None;
        self.is_store_disabled.store(false, Ordering::Relaxed);
    }

    /// Returns whether the time for which the remote store is disabled is over.
    pub fn is_rehearsal_over(&self, now: Instant) -> bool {
        self.disabled_until.lock().is_some_and(|until| until <= now)
    }

    /// Returns whether an operator has disabled the remote store.
    pub fn is_store_disabled(&self) -> bool {
        self.is_store_disabled.load(Ordering::Relaxed)
    }

    /// Returns the tracker that counts unanswered calls and reports the current outage.
    pub fn outages(&self) -> &OutageTracker {
        &self.outages
    }

    /// Returns the number of replicas that share each limit.
    pub fn replicas(&self) -> u32 {
        self.ledger.shares.replicas()
    }

    /// Changes the number of replicas that share each limit; at least 1.
    pub fn set_replicas(&self, replicas: u32) {
        self.ledger.shares.set_replicas(replicas.max(1));
        self.prepaid.lots.set_replicas(replicas.max(1));
    }

    /// Returns an upper bound on the number of hits that this replica has admitted beyond the
    /// limits and that may still affect a limit. The remote store may not have charged these hits,
    /// or may have charged and then lost them.
    pub fn over_admitted_max(&self, now: Micros) -> u64 {
        self.ledger.over_admitted_max(now)
    }

    /// Returns the number of hits admitted locally since startup that were charged on the remote
    /// store afterwards.
    pub fn hits_charged_later(&self) -> u64 {
        self.ledger.late_charges.charged()
    }

    /// Returns the statistics. Their values change while the service runs.
    pub fn stats(&self) -> &StackStats {
        &self.stats
    }
}

impl<S: SharedStore, L: LocalStore> Stack<S, L> {
    /// Updates the current outage, if a second has passed since a call last did, so that its start
    /// and its end are logged even if nobody calls [`outage`](Self::outage). Costs an atomic load
    /// otherwise.
    pub(crate) fn update_outage(&self, now: Micros) {
        if self.outages.claim_update(now) {
            self.outage(now);
        }
    }

    /// Returns the current outage, or `None` if there is none. Also logs the start and the end of
    /// outages. Calls do so, too; without calls, nobody learns of an outage unless this is called.
    pub fn outage(&self, now: Micros) -> Option<Outage> {
        self.ledger.record_losses(self.remote.counter_losses(), now);
        self.ledger.expire(now);
        let unavailable = if self.is_store_disabled() {
            Some(FailureKind::Rehearsed)
        } else {
            (!self.remote.is_available()).then_some(FailureKind::NotConnected)
        };
        self.outages.update(now, unavailable, |kind| self.remote.failure(kind))
    }

    /// Waits until the background tasks of this value and of the remote store have ended. Called
    /// only at shutdown, after the last call.
    pub async fn wait_until_idle(&self) {
        self.tasks.wait_until_done().await;
        self.ledger.wait_until_idle().await;
        self.prepaid.wait_until_idle().await;
        self.remote.wait_until_idle().await;
    }
}
