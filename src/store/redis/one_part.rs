//! Waiting for the reply to a call that is one command, or the plain charges of one node.
//!
//! Nothing but the answer follows such a call, so its caller waits in place. If the caller leaves or
//! its deadline passes, a command that is not written is dropped. The reply to a written one is left
//! to a task, which settles its charges. Not here: calls of several parts (`multi_part`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use redis::Value;
use tokio::sync::oneshot;

use super::client::plain_charge::{ChargeReplies, PendingCharges};
use super::client::shared_write::SharedCall;
use super::client::transport::{PendingScript, PendingShared, SendError, SharedReply, Transport};
use super::plain_calls::PlainResult;
use super::script::reply::ScriptReply;
use super::store::Shared;
use crate::domain::{
    Answer, Answers, Call, ExecutionStatus, LateFate, LateReply, OwnedCall, Receipt, Source,
};
use crate::store::delivery::{late_reply, unanswered};

/// Commands of one call that wait for their replies.
pub(super) enum Pending {
    Script(PendingScript),
    Charges(PendingCharges),
    Shared(PendingShared),
}

/// Reply to a [`Pending`].
pub(super) enum PartReply {
    Script(Result<Value, SendError>),
    Charges(ChargeReplies),
    Shared(Result<SharedReply, SendError>),
}

impl Pending {
    /// Withdraws what is not written, because the caller no longer waits. Returns whether nothing
    /// has been or will be written.
    fn leave(&mut self) -> bool {
        match self {
            Pending::Script(script) => script.leave(),
            Pending::Charges(charges) => charges.leave(),
            Pending::Shared(shared) => shared.leave(),
        }
    }
}

impl Future for Pending {
    type Output = PartReply;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PartReply> {
        match self.get_mut() {
            Pending::Script(script) => Pin::new(script).poll(context).map(PartReply::Script),
            Pending::Charges(charges) => Pin::new(charges).poll(context).map(PartReply::Charges),
            Pending::Shared(shared) => Pin::new(shared).poll(context).map(PartReply::Shared),
        }
    }
}

/// Wait of a caller for the reply to its call. If dropped before the reply, leaves the reply to a
/// task.
struct CallerWait<'a, T: Transport> {
    store: &'a Arc<Shared<T>>,
    call: &'a Call<'a>,
    /// `None` once the reply has arrived or was left to a task.
    pending: Option<Pending>,
}

impl<T: Transport> CallerWait<'_, T> {
    /// Leaves the reply to a task. Returns the handle that tells the task what becomes of the
    /// charges, or `None` if nothing was written.
    fn leave(&mut self) -> Option<LateReply> {
        let mut pending = self.pending.take()?;
        if pending.leave() {
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
    type Output = PartReply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PartReply> {
        let Some(pending) = &mut self.pending else { return Poll::Pending };
        let reply = ready!(Pin::new(pending).poll(context));
        self.pending = None;
        Poll::Ready(reply)
    }
}

impl<T: Transport> Drop for CallerWait<'_, T> {
    fn drop(&mut self) {
        // The fate of a handle that is dropped is that nobody hears the answer.
        drop(self.leave());
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
        pending: Pending,
    ) -> Result<PartReply, Answers> {
        let mut wait = CallerWait { store: self, call, pending: Some(pending) };
        let Some(deadline) = call.deadline else { return Ok((&mut wait).await) };
        // The reply before the timer: one that has arrived counts even after the deadline.
        match tokio::time::timeout_at(deadline.into(), &mut wait).await {
            Ok(reply) => Ok(reply),
            Err(_) => Err(Answers { late: wait.leave(), ..self.overrun(call) }),
        }
    }

    /// Decides a call with a script call that it may share with other calls of its write.
    pub(super) async fn decide_shared(
        self: &Arc<Self>,
        call: &Call<'_>,
        shared: SharedCall,
    ) -> Answers {
        let Some(pending) = self.transport.submit_shared(shared, call.deadline) else {
            return unanswered(call, ExecutionStatus::NotExecuted, Source::Redis);
        };
        let answers = match self.wait_in_place(call, Pending::Shared(pending)).await {
            Ok(PartReply::Shared(reply)) => self.decode_shared(reply, call),
            Ok(PartReply::Script(_) | PartReply::Charges(_)) => self.overrun(call),
            Err(answers) => answers,
        };
        self.record_script_call(call, &answers.each);
        answers
    }

    /// Decodes the reply to a call that can share a script call.
    fn decode_shared(&self, reply: Result<SharedReply, SendError>, call: &Call<'_>) -> Answers {
        match reply {
            Ok(SharedReply::Decided(ScriptReply { outcomes, clamped, .. })) => {
                self.stats.clamped.fetch_add(clamped, Ordering::Relaxed);
                let each = outcomes.into_iter().map(Answer::Decided).collect();
                Answers::new(each, Source::Redis)
            }
            Ok(SharedReply::Alone(value)) => self.decode_answers(Ok(value), call),
            Err(error) => self.decode_answers(Err(error), call),
        }
    }

    /// Waits for the reply to a call whose caller has left or was late, and settles its charges.
    async fn settle_late(
        self: Arc<Self>,
        call: OwnedCall,
        pending: Pending,
        fate: oneshot::Receiver<LateFate>,
    ) {
        let reply = pending.await;
        let checks = call.checks();
        let call = call.to_call(&checks);
        let mut answers = match reply {
            PartReply::Script(reply) => self.decode_answers(reply, &call),
            PartReply::Shared(reply) => self.decode_shared(reply, &call),
            PartReply::Charges(replies) => match self.evaluate_charges(&call, &replies) {
                Some(PlainResult::Decided(answers)) => answers,
                // The connection has refunded what does not decide the call.
                Some(PlainResult::Undecided(_) | PlainResult::Unknown(_)) | None => return,
            },
        };
        match fate.await.unwrap_or(LateFate::Unheard) {
            LateFate::Keep => {}
            LateFate::Unheard => self.stats.unheard.add(answers.charged()),
            LateFate::Refund => self.refund_charged(&call, &mut answers.each),
        }
    }

    /// Refunds the charges of a rejected call in the background.
    pub(super) fn refund_charged(&self, call: &Call<'_>, answers: &mut [Answer]) {
        let receipts = Receipt::for_rejected_call(call.checks, answers);
        self.refund_in_background(&receipts, self.now(call));
    }
}
