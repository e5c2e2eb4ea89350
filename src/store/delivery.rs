//! Answers of a call that a task of the store owns, on their way to the caller.
//!
//! The caller only waits. If it leaves, the charges of a call that was admitted stand, as those of a
//! request that was let through and then broke off, and are counted. Not here: what the task does
//! (`redis::multi_part`, `resilience`).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::current_trace;
use crate::domain::{Answer, Answers, Call, ExecutionStatus, LateFate, LateReply, Source};

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

/// Answers on their way to a caller. If the caller never takes them, their charges are counted as
/// unheard.
#[derive(Debug)]
pub(crate) struct Delivery {
    answers: Option<Answers>,
    unheard: UnheardHits,
}

impl Delivery {
    pub(crate) fn new(answers: Answers, unheard: &UnheardHits) -> Delivery {
        Delivery { answers: Some(answers), unheard: unheard.clone() }
    }
}

impl Delivery {
    /// Takes the answers that the caller does not take, because it has left or was late.
    pub(crate) fn into_undelivered(mut self) -> Option<Answers> {
        self.answers.take()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // With a late reply, its owner counts or refunds all charges of the call.
        if let Some(answers) = self.answers.take().filter(|answers| answers.late.is_none()) {
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

/// Task's side of a call: passes the answers to the caller, and shows whether it has left.
pub(crate) type Caller = oneshot::Sender<Delivery>;

/// Runs `work` in a task like [`run_in_task`], but waits only until `deadline`. If there are no
/// answers by then, returns the handle that tells the task what becomes of the charges. `work` also
/// gets the fate of the charges, in case the caller does not take the answers.
pub(crate) async fn run_in_task_until<W>(
    deadline: Option<Instant>,
    work: impl FnOnce(Caller, oneshot::Receiver<LateFate>) -> W,
) -> Result<Option<Answers>, LateReply>
where
    W: Future<Output = ()> + Send + 'static,
{
    let Ok(runtime) = Handle::try_current() else { return Ok(None) };
    let (caller, mut delivery) = oneshot::channel();
    let (late, fate) = late_reply();
    runtime.spawn(current_trace::carry(work(caller, fate)));
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
    Ok(received.and_then(|mut delivery| delivery.answers.take()))
}

/// Runs `work` in a task, and waits for the answers that it passes to the caller. If this future is
/// dropped or never polled again, the task still runs to its end. Returns `None` if the task has
/// ended without answers, because its runtime has ended, or if there is no runtime.
pub(crate) async fn run_in_task<W>(work: impl FnOnce(Caller) -> W) -> Option<Answers>
where
    W: Future<Output = ()> + Send + 'static,
{
    let runtime = Handle::try_current().ok()?;
    let (caller, delivery) = oneshot::channel();
    runtime.spawn(current_trace::carry(work(caller)));
    delivery.await.ok()?.answers.take()
}

/// Returns the answers to a call that no store has decided.
pub(crate) fn unanswered(call: &Call<'_>, executed: ExecutionStatus, source: Source) -> Answers {
    Answers::new(vec![Answer::Unanswered { executed }; call.checks.len()], source)
}
