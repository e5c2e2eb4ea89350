//! Charges hits on the remote store after their call was decided locally.
//!
//! A healthy store is sometimes not asked to decide a call, because its answer would come too late
//! for the caller. The store would then admit the hits of that call once more. So the hits are
//! charged in the background: at once, because charges that are queued now are executed before all
//! later calls.
//!
//! Charges to the same counter are combined while they wait, and only one call is in flight, so
//! that the charges of many calls cost the store little. Each charge is sent at most once.
//!
//! Not here: selecting the hits to charge (`fallback`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use crate::domain::{
    Answer, Check, CounterKey, Hits, Holder, Limit, Lock, Micros, Op, Outcome, Role, Verdict,
};
use crate::store::owned_tasks::OwnedTasks;

/// Maximum number of counters whose charges wait; charges to further counters are dropped. This is
/// also the maximum number of checks in one background call.
const COUNTERS_MAX: usize = 256;

/// Hits to charge to one counter.
#[derive(Clone, Debug)]
pub(crate) struct LateCharge {
    pub(crate) key: CounterKey,
    pub(crate) limit: Arc<Limit>,
    pub(crate) hits: Hits,
    pub(crate) role: Role,
    /// Hold that the hits settle, which may be 0; `None` for a plain charge.
    pub(crate) settles: Option<Holder>,
}

impl LateCharge {
    pub(super) fn to_check(&self) -> Check<'_> {
        let (cost, holder, role) = (self.hits, self.settles, self.role);
        let op = if holder.is_some() { Op::Settle { cost } } else { Op::Take { cost } };
        Check { key: self.key, limit: &self.limit, op, role, holder, may_block: false }
    }
}

/// Charges that wait for the background task, and the task's statistics.
#[derive(Debug, Default)]
pub(crate) struct LateCharges {
    /// Locked only by calls that were not sent and by the background task, and never across an await.
    queue: Lock<Queue>,
    charged: AtomicU64,
    /// Tasks that run until no charge waits or is in flight.
    pub(super) tasks: OwnedTasks,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<LateCharge>,
    /// Wall-clock time of the latest call that added a charge.
    now: Micros,
    /// Alive while a background task is running, which sends everything that waits. The task drops it
    /// even if its runtime ends before the task.
    sender: Weak<()>,
}

impl LateCharges {
    /// Returns the number of hits charged since startup.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Charges hits in a background task, which `send` starts unless one is running. Drops a charge if
    /// [`COUNTERS_MAX`] other counters wait, and all charges if there is no tokio runtime.
    pub(super) fn add<F: Future<Output = ()> + Send + 'static>(
        &self,
        charges: impl IntoIterator<Item = LateCharge>,
        now: Micros,
        send: impl FnOnce() -> F,
    ) {
        if Handle::try_current().is_err() {
            return;
        }
        let mut queue = self.queue.lock();
        for charge in charges {
            queue.push(charge);
        }
        queue.now = now;
        if queue.waiting.is_empty() || queue.sender.strong_count() > 0 {
            return;
        }
        let (sending, sender) = (send(), Arc::new(()));
        queue.sender = Arc::downgrade(&sender);
        self.tasks.spawn(async move {
            sending.await;
            drop(sender);
        });
    }

    /// Records the remote store's answers to charges. If a counter refused a charge because too few
    /// hits were left, those hits wait to be charged.
    pub(super) fn record_answers(&self, charges: &[LateCharge], answers: &[Answer]) {
        for (charge, answer) in charges.iter().zip(answers) {
            let Answer::Decided(outcome) = answer else { continue };
            self.charged.fetch_add(outcome.charged.0, Ordering::Relaxed);
            if let Some(rest) = rest_of(charge, outcome) {
                self.queue.lock().push(rest);
            }
        }
    }

    /// Takes all waiting charges out of the queue, with the time of the latest. If there are none,
    /// records that the background task ends.
    pub(super) fn take_waiting(&self) -> Option<(Vec<LateCharge>, Micros)> {
        let mut queue = self.queue.lock();
        if queue.waiting.is_empty() {
            queue.sender = Weak::new();
            return None;
        }
        Some((std::mem::take(&mut queue.waiting), queue.now))
    }
}

impl Queue {
    fn push(&mut self, charge: LateCharge) {
        let is_same = |waiting: &LateCharge| {
            waiting.key == charge.key
                && Arc::ptr_eq(&waiting.limit, &charge.limit)
                // The second settle of a hold charges nothing.
                && (waiting.settles, charge.settles) == (None, None)
        };
        match self.waiting.iter().position(is_same) {
            Some(at) => {
                let hits = &mut self.waiting[at].hits.0;
                *hits = hits.saturating_add(charge.hits.0);
            }
            None if self.waiting.len() < COUNTERS_MAX => self.waiting.push(charge),
            None => {}
        }
    }
}

/// Returns the charge that fills the counter, if the whole charge was refused because it exceeds
/// the hits available.
fn rest_of(charge: &LateCharge, outcome: &Outcome) -> Option<LateCharge> {
    let available = outcome.available;
    let is_rest = outcome.verdict == Verdict::Refuse
        && outcome.charged == Hits::ZERO
        && available > Hits::ZERO
        && available < charge.hits;
    is_rest.then(|| LateCharge { hits: available, ..charge.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::domain::fixtures::fixed_window;
    use crate::domain::{Answers, Call, Receipt};
    use crate::resilience::stack::{Stack, StackConfig};
    use crate::store::{LocalStore, Store};

    /// Store that never answers, and counts the calls.
    #[derive(Debug, Default)]
    struct SilentStore(AtomicU64);

    impl Store for SilentStore {
        async fn apply(&self, _: &Call<'_>) -> Answers {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        }

        async fn refund(&self, _: &[Receipt]) {}
    }

    impl LocalStore for SilentStore {
        fn decide(&self, _: &Call<'_>) -> Vec<Answer> {
            panic!("only the remote store is asked")
        }

        fn decide_one(&self, _: &Check<'_>, _: Micros) -> Outcome {
            panic!("only the remote store is asked")
        }

        fn block(&self, _: &Check<'_>, _: Micros, _: Micros) {
            panic!("only the remote store is asked")
        }
    }

    #[test]
    fn charges_after_the_end_of_a_runtime_are_sent_on_the_next() {
        let [remote, local] = [(), ()].map(|()| SilentStore::default());
        let stack = Stack::new(remote, local, StackConfig::default(), Clock::System);
        let limit = Arc::new(fixed_window(10, Micros::SECOND));
        for sent in 1..=3 {
            // Dropped at the end of the loop's body, with the task that waits for the store.
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let send = || Arc::clone(&stack).send_late_charges();
                stack.ledger.late_charges.add([charge(sent, &limit)], Micros::ZERO, send);
                tokio::task::yield_now().await;
            });
            assert_eq!(u128::from(stack.remote().0.load(Ordering::Relaxed)), sent);
        }
    }

    fn charge(identity: u128, limit: &Arc<Limit>) -> LateCharge {
        let key = CounterKey { identity, tag: None };
        LateCharge {
            key,
            limit: Arc::clone(limit),
            hits: Hits::ONE,
            role: Role::Required,
            settles: None,
        }
    }

    #[test]
    fn charges_to_one_counter_are_combined_and_the_number_of_counters_is_bounded() {
        let limit = Arc::new(fixed_window(10, Micros::SECOND));
        let mut queue = Queue::default();
        for identity in 0..COUNTERS_MAX as u128 + 1 {
            queue.push(charge(identity, &limit));
        }
        queue.push(charge(0, &limit));
        queue.push(charge(COUNTERS_MAX as u128, &limit));
        assert_eq!(queue.waiting.len(), COUNTERS_MAX);
        assert_eq!(queue.waiting[0].hits, Hits(2));
        assert!(queue.waiting[1..].iter().all(|waiting| waiting.hits == Hits::ONE));
    }

    #[test]
    fn charges_of_different_limits_on_one_counter_stay_apart() {
        let limits = [10, 20].map(|hits| Arc::new(fixed_window(hits, Micros::SECOND)));
        let mut queue = Queue::default();
        queue.push(charge(1, &limits[0]));
        queue.push(charge(1, &limits[1]));
        assert_eq!(queue.waiting.len(), 2);
    }
}
