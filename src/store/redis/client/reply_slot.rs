//! Reply to a command, and the slot through which a connection passes it to its caller.
//!
//! Unlike a oneshot channel, the slot also knows whether the command has been written. A caller that
//! leaves therefore learns whether its command will never be sent or may already run, and in the
//! second case can leave the slot to a task that receives the reply.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use redis::Value;

use super::error_reply::Redirect;
use super::send_error::SendError;
use crate::domain::{FailureKind, Lock};
use crate::store::redis::script::library::ScriptCall;
use crate::store::redis::script::reply::ScriptReply;

/// Reply to a [`NodeRequest`](crate::store::redis::script::call::NodeRequest).
#[derive(Clone, Debug)]
pub enum CallReply {
    /// The script call of its own returned this value.
    Script(Value),
    /// The script call that it shared decided it.
    Decided(ScriptReply),
    /// The node does not hold every counter. Nothing was charged.
    NotHere,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) enum CommandReply {
    /// The reply. The error is that the command was rejected, failed with an error reply, or was lost.
    Final(Result<CallReply, SendError>),
    /// The script did not run, because the node replied with a redirect. Contains the script
    /// call, so that it can be sent again. Boxed, so that replies stay small.
    Redirect(Redirect, Box<ScriptCall>),
}

/// The command waits in a queue.
const QUEUED: u8 = 0;
/// The command has been or is being written, so it may run.
const WRITTEN: u8 = 1;
/// The caller has left before the command was written, so it will never be written.
const ABANDONED: u8 = 2;

#[derive(Debug)]
struct Slot {
    state: AtomicU8,
    /// Whether the reply is in its place. Spares a caller the lock while it waits.
    is_answered: AtomicBool,
    /// Locked for one assignment: by the connection, and then by the caller.
    reply: Lock<Option<CommandReply>>,
    waker: AtomicWaker,
}

impl Slot {
    /// Leaves [`QUEUED`] for `state`, unless the other side has left it for another state.
    fn leave_queue(&self, state: u8) -> bool {
        let changed =
            self.state.compare_exchange(QUEUED, state, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok() || changed == Err(state)
    }
}

/// Connection's side of a slot. If dropped without a reply, the caller receives
/// [`SendError::LOST`], unless the command was never written.
#[derive(Debug)]
pub(crate) struct ReplySender {
    /// `None` once the reply has been passed.
    slot: Option<Arc<Slot>>,
}

/// Caller's side of a slot: a future that resolves to the reply.
#[derive(Debug)]
pub(crate) struct ReplyReceiver(Arc<Slot>);

pub(crate) fn reply_slot() -> (ReplySender, ReplyReceiver) {
    let slot = Arc::new(Slot {
        state: AtomicU8::new(QUEUED),
        is_answered: AtomicBool::new(false),
        reply: Lock::new(None),
        waker: AtomicWaker::new(),
    });
    (ReplySender { slot: Some(Arc::clone(&slot)) }, ReplyReceiver(slot))
}

impl ReplySender {
    /// Marks the command as written. Returns false if the caller has left, so that the command must
    /// not be written. A command that is written again stays marked.
    pub(crate) fn mark_written(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.leave_queue(WRITTEN))
    }

    /// Passes the reply to the caller.
    pub(crate) fn send(mut self, reply: CommandReply) {
        self.complete(reply);
    }

    fn complete(&mut self, reply: CommandReply) {
        if let Some(slot) = self.slot.take() {
            *slot.reply.lock() = Some(reply);
            slot.is_answered.store(true, Ordering::Release);
            slot.waker.wake();
        }
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        let Some(slot) = &self.slot else { return };
        let error = match slot.state.load(Ordering::Acquire) {
            WRITTEN => SendError::LOST,
            _ => SendError::not_executed(FailureKind::NotConnected),
        };
        self.complete(CommandReply::Final(Err(error)));
    }
}

impl ReplyReceiver {
    /// Prevents the command from being written. Returns false if it has already been written.
    pub(crate) fn abandon(&self) -> bool {
        self.0.leave_queue(ABANDONED)
    }

    pub(crate) fn take(&self) -> Option<CommandReply> {
        let is_answered = self.0.is_answered.load(Ordering::Acquire);
        if is_answered { self.0.reply.lock().take() } else { None }
    }
}

impl Drop for ReplyReceiver {
    /// A caller that leaves needs no command that still waits.
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Future for ReplyReceiver {
    type Output = CommandReply;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CommandReply> {
        if let Some(reply) = self.take() {
            return Poll::Ready(reply);
        }
        self.0.waker.register(context.waker());
        // Again, because a reply before the registration woke nobody.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use redis::Value;

    use super::*;
    use crate::domain::ExecutionStatus;

    #[test]
    fn a_caller_that_leaves_stops_a_queued_command_and_no_written_one() {
        let (sender, receiver) = reply_slot();
        assert!(receiver.abandon());
        assert!(!sender.mark_written(), "it must not be written");
        let (sender, receiver) = reply_slot();
        assert!(sender.mark_written());
        assert!(!receiver.abandon(), "it may run");
        assert!(sender.mark_written(), "it is written again");
        let (sender, receiver) = reply_slot();
        drop(receiver);
        assert!(!sender.mark_written());
    }

    #[test]
    fn the_reply_of_a_written_command_arrives_although_the_caller_tried_to_leave() {
        let (sender, mut receiver) = reply_slot();
        assert!(sender.mark_written() && !receiver.abandon());
        assert!((&mut receiver).now_or_never().is_none());
        sender.send(CommandReply::Final(Ok(CallReply::Script(Value::Okay))));
        let reply = receiver.now_or_never();
        let Some(CommandReply::Final(Ok(CallReply::Script(value)))) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(value, Value::Okay);
    }

    #[tokio::test]
    async fn a_sender_that_is_dropped_tells_its_caller_whether_the_command_may_have_run() {
        for is_written in [true, false] {
            let (sender, receiver) = reply_slot();
            assert!(!is_written || sender.mark_written());
            let waits = tokio::spawn(receiver);
            tokio::task::yield_now().await;
            drop(sender);
            let CommandReply::Final(Err(error)) = waits.await.unwrap() else {
                panic!("no reply came")
            };
            assert_eq!(error == SendError::LOST, is_written);
            assert_eq!(error.executed == ExecutionStatus::NotExecuted, !is_written);
        }
    }
}
