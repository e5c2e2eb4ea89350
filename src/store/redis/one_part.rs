//! Waiting for the reply to a call that is one request to a node.
//!
//! Nothing but the answer follows such a call, so its caller waits in place. If the caller leaves or
//! its deadline passes, a request that is not written is dropped. The reply to a written one is left
//! to a task, which settles its charges. Not here: calls of several parts (`multi_part`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::client::send_error::SendError;
use super::client::transport::{CallReply, PendingCall, Transport};
use super::store::Shared;
use crate::domain::{Answer, Answers, Call, LateFate, LateReply, OwnedCall, Receipt};
use crate::store::delivery::late_reply;

/// Wait of a caller for the reply to its call. If dropped before the reply, leaves the reply to a
/// task.
struct CallerWait<'a, T: Transport> {
    store: &'a Arc<Shared<T>>,
    call: &'a Call<'a>,
    /// `None` once the reply has arrived or was left to a task.
    pending: Option<PendingCall>,
}

impl<T: Transport> CallerWait<'_, T> {
    /// Leaves the reply to a task. Returns the handle that tells the task what becomes of the
    /// charges, or `None` if nothing was written.
    fn stop_waiting(&mut self) -> Option<LateReply> {
        let mut pending = self.pending.take()?;
        if pending.stop_waiting() {
            return None;
        }
        let (late, fate) = late_reply();
        let (store, call) = (Arc::clone(self.store), OwnedCall::new(self.call));
        // Without a runtime, nobody can receive the reply: the process ends.
        let settle = async move { store.settle_late(call, pending, fate).await };
        self.store.tasks.spawn(settle).then_some(late)
    }
}

impl<T: Transport> Future for CallerWait<'_, T> {
    type Output = Result<CallReply, SendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(pending) = &mut self.pending else { return Poll::Pending };
        let reply = ready!(Pin::new(pending).poll(context));
        self.pending = None;
        Poll::Ready(reply)
    }
}

impl<T: Transport> Drop for CallerWait<'_, T> {
    fn drop(&mut self) {
        // The fate of a handle that is dropped is that nobody hears the answer.
        drop(self.stop_waiting());
    }
}

impl<T: Transport> Shared<T> {
    /// Waits for the reply to a call until its deadline.
    ///
    /// # Errors
    ///
    /// If there is no reply by then, returns the unanswered checks, with the handle to a reply that
    /// may still arrive.
    pub(super) async fn wait_in_place(
        self: &Arc<Self>,
        call: &Call<'_>,
        pending: PendingCall,
    ) -> Result<Result<CallReply, SendError>, Answers> {
        let mut wait = CallerWait { store: self, call, pending: Some(pending) };
        let Some(deadline) = call.deadline else { return Ok((&mut wait).await) };
        // The reply before the timer: one that has arrived counts even after the deadline.
        match tokio::time::timeout_at(deadline.into(), &mut wait).await {
            Ok(reply) => Ok(reply),
            Err(_) => Err(Answers { late: wait.stop_waiting(), ..self.overrun(call) }),
        }
    }

    /// Waits for the reply to a call whose caller has left or was late, and settles its charges.
    async fn settle_late(
        self: Arc<Self>,
        call: OwnedCall,
        pending: PendingCall,
        fate: oneshot::Receiver<LateFate>,
    ) {
        let reply = pending.await;
        let checks = call.checks();
        let call = call.to_call(&checks);
        let mut answers = self.decode_answers(reply, &call);
        match fate.await.unwrap_or(LateFate::Unheard) {
            LateFate::Keep => {}
            LateFate::Unheard => self.stats.unheard.add(answers.charged()),
            LateFate::Refund => self.refund_charged(&call, &mut answers.each),
        }
    }

    /// Refunds the charges of a rejected call in the background.
    pub(super) fn refund_charged(&self, call: &Call<'_>, answers: &mut [Answer]) {
        let receipts = Receipt::for_rejected_call(call.checks, call.accounting, answers);
        self.refund_in_background(&receipts, self.now(call));
    }
}
