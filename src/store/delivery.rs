//! Answers of a call that a task of the store owns, on their way to the caller.
//!
//! The caller only waits. If it leaves, the charges of a call that was admitted stand, as those of a
//! request that was let through and then broke off, and are counted. Not here: what the task does
//! (`redis::multi_part`, `resilience`).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::current_trace;
use super::owned_tasks::{OwnedTasks, box_in_place};
use crate::domain::{
    Answer, Answers, Call, ExecutionStatus, FailureKind, LateFate, LateReply, Lock, Source,
};

/// Time for which answers that are no decision yet wait for a caller that neither takes them nor
/// leaves, because its future is not polled. Longer than a caller that is alive takes.
const PART_WAIT_MAX: Duration = Duration::from_secs(1);

/// Number of hits charged for calls whose callers had left when the answer arrived, as a total since
/// startup. Clones share the number.
#[derive(Clone, Debug, Default)]
pub struct UnheardHits(Arc<AtomicU64>);

impl UnheardHits {
    /// Returns the number of hits.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, hits: u64) {
        self.0.fetch_add(hits, Ordering::Relaxed);
    }
}

/// Task's side of a call: passes the answers to the caller, and shows whether it has left.
#[derive(Debug)]
pub(crate) struct Caller {
    sender: oneshot::Sender<Delivery>,
    unheard: UnheardHits,
}

/// Answers on their way to a caller. If nobody takes them, their charges are counted as unheard.
#[derive(Debug)]
struct Delivery {
    answers: Arc<Lock<Option<Answers>>>,
    unheard: UnheardHits,
}

impl Caller {
    /// Waits until the caller leaves or stops waiting.
    pub(crate) async fn closed(&mut self) {
        self.sender.closed().await;
    }

    /// Returns whether the caller has left or stopped waiting.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Passes the answers to the caller. If it has left, their charges are counted as unheard.
    pub(crate) fn deliver(self, answers: Answers) {
        // Dropped if the caller has left, which counts its charges.
        let _ = self.sender.send(Delivery::new(answers, self.unheard));
    }

    /// Passes the answers to the caller.
    ///
    /// # Errors
    ///
    /// Returns the answers if the caller has left or stopped waiting.
    pub(crate) fn try_deliver(self, answers: Answers) -> Result<(), Option<Answers>> {
        let undelivered = self.sender.send(Delivery::new(answers, self.unheard));
        undelivered.map_err(|delivery| delivery.answers.lock().take())
    }

    /// Passes answers to a caller that must decide the rest of the call. The returned future resolves
    /// to the fate of their charges.
    pub(crate) fn deliver_part(
        self,
        answers: Answers,
    ) -> impl Future<Output = LateFate> + Send + use<> {
        let (late, mut fate) = late_reply();
        let delivery = Delivery::new(Answers { late: Some(late), ..answers }, self.unheard);
        let answers = Arc::clone(&delivery.answers);
        // If the caller has left, the handle is dropped, and its fate is that nobody hears it.
        let _ = self.sender.send(delivery);
        async move {
            let fate = match tokio::time::timeout(PART_WAIT_MAX, &mut fate).await {
                Ok(fate) => fate,
                Err(_) => {
                    // Withdrawn, unless the caller has taken them.
                    drop(answers.lock().take());
                    fate.await
                }
            };
            fate.unwrap_or(LateFate::Unheard)
        }
    }
}

impl Delivery {
    fn new(answers: Answers, unheard: UnheardHits) -> Delivery {
        Delivery { answers: Arc::new(Lock::new(Some(answers))), unheard }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // With a late reply, its owner counts or refunds all charges of the call.
        let answers = self.answers.lock().take();
        if let Some(answers) = answers.filter(|answers| answers.late.is_none()) {
            self.unheard.add(answers.charged());
        }
    }
}

/// Creates the handle to a late reply, with the receiver of the fate of its charges.
pub(crate) fn late_reply() -> (LateReply, oneshot::Receiver<LateFate>) {
    let (settle, fate) = oneshot::channel();
    let late = LateReply::new(move |fate| {
        // Fails if the runtime of the receiver has ended.
        let _ = settle.send(fate);
    });
    (late, fate)
}

/// Runs `work` in a task, and waits for the answers that it passes to the caller. If this future is
/// dropped or never polled again, the task still runs to its end. Returns `None` if the task has
/// ended without answers, because its runtime has ended, or if there is no runtime.
pub(crate) async fn run_in_task<W>(
    tasks: &OwnedTasks,
    unheard: &UnheardHits,
    work: impl FnOnce(Caller) -> W,
) -> Option<Answers>
where
    W: Future<Output = ()> + Send + 'static,
{
    let delivery = start(tasks, unheard, work)?.await.ok()?;
    delivery.answers.lock().take()
}

/// Runs `work` in a task like [`run_in_task`], but waits only until `deadline`. `work` also gets the
/// fate of the charges, in case the caller does not take the answers.
///
/// # Errors
///
/// If there are no answers by the deadline, returns the handle that tells the task what becomes of
/// the charges.
pub(crate) async fn run_in_task_until<W>(
    deadline: Option<Instant>,
    tasks: &OwnedTasks,
    unheard: &UnheardHits,
    work: impl FnOnce(Caller, oneshot::Receiver<LateFate>) -> W,
) -> Result<Option<Answers>, LateReply>
where
    W: Future<Output = ()> + Send + 'static,
{
    let (late, fate) = late_reply();
    let Some(mut delivery) = start(tasks, unheard, |caller| work(caller, fate)) else {
        return Ok(None);
    };
    let received = match deadline {
        None => (&mut delivery).await.ok(),
        Some(deadline) => match tokio::time::timeout_at(deadline.into(), &mut delivery).await {
            Ok(received) => received.ok(),
            Err(_) => {
                // Answers that arrive from now on stay with the task.
                delivery.close();
                let Ok(arrived) = delivery.try_recv() else { return Err(late) };
                Some(arrived)
            }
        },
    };
    Ok(received.and_then(|delivery| delivery.answers.lock().take()))
}

fn start<W>(
    tasks: &OwnedTasks,
    unheard: &UnheardHits,
    work: impl FnOnce(Caller) -> W,
) -> Option<oneshot::Receiver<Delivery>>
where
    W: Future<Output = ()> + Send + 'static,
{
    let (sender, delivery) = oneshot::channel();
    let caller = Caller { sender, unheard: unheard.clone() };
    // Boxed, because tokio copies a task when it starts and, three times, when it ends, and the
    // future of a call of several parts takes 12 KB.
    let work = box_in_place(|| work(caller));
    tasks.spawn(current_trace::carry(work)).then_some(delivery)
}

/// Returns the answers to a call that no store has decided, for this reason.
pub(crate) fn unanswered(
    call: &Call<'_>,
    executed: ExecutionStatus,
    failure: FailureKind,
) -> Answers {
    let source = if failure.is_overload() { Source::Shed } else { Source::Redis };
    let each = vec![Answer::Unanswered { executed }; call.checks.len()];
    Answers { failure: Some(failure), ..Answers::new(each, source) }
}
