//! Calls of one write that share one script call: what they wait with, and what the reply means.
//!
//! Not here: the calls, the arguments and the replay (`script`), when to write (`connection`).

use std::collections::VecDeque;

use redis::{Pipeline, Value};

use super::connection_state::Connection;
use super::error_reply::{ErrorReply, failure_kind, reply_text};
use super::pending_command::PendingCommand;
use super::reply_slot::CallReply;
use super::send_error::SendError;
use crate::domain::FailureKind;
use crate::store::redis::script::library::ScriptCall;
use crate::store::redis::script::replay::{CallResult, Replay, WriteResults};
use crate::store::redis::script::reply::ReplyError;
use crate::store::redis::script::write_calls::WriteCalls;

/// Calls of one write that share one script call.
#[derive(Debug, Default)]
pub(super) struct SharedWrite {
    calls: WriteCalls,
    commands: Vec<PendingCommand>,
    /// Number of replies, to SCRIPT LOAD, that precede the script's reply.
    pub(super) preceding_replies: usize,
}

impl SharedWrite {
    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub(super) fn wire_size(&self) -> usize {
        self.calls.wire_size()
    }

    /// Returns whether a command can be added, or needs no room here because it is written by
    /// itself.
    pub(super) fn fits(&self, command: &PendingCommand) -> bool {
        let shared = command.shared();
        shared.is_none_or(|shared| shared.with_call(|call| self.calls.fits(call, shared.now)))
    }

    /// Adds the command of a call that can share a script call.
    pub(super) fn add(&mut self, command: PendingCommand) {
        if let Some(shared) = command.shared() {
            shared.with_call(|call| self.calls.add(&shared.encoder, call, shared.now));
            self.commands.push(command);
        }
    }

    /// Takes the commands if they are too few to share a script call. On a cluster, the script call of
    /// one call has KEYS, if they are in one slot: then the node says where a slot went.
    pub(super) fn take_few(&mut self, calls_min: usize) -> Vec<PendingCommand> {
        let spans_slots = |command: &PendingCommand| {
            command.shared().is_some_and(|shared| shared.scope.spans_slots)
        };
        let is_enough = self.len() >= calls_min || self.commands.iter().any(spans_slots);
        if is_enough { Vec::new() } else { std::mem::take(&mut self.commands) }
    }

    /// Appends the script call.
    pub(super) fn write(&mut self, pipeline: &mut Pipeline) {
        let Some(shared) = self.commands.first().and_then(PendingCommand::shared) else { return };
        let ScriptCall { script, command, .. } =
            self.calls.encode(&shared.encoder, shared.encoder.is_cluster());
        if self.commands.iter().any(|command| command.noscript_count > 0) {
            pipeline.add_command(script.load_command());
            self.preceding_replies = 1;
        }
        pipeline.add_command(command);
    }

    fn replay(&self, reply: &Value) -> Result<WriteResults, ReplyError> {
        let Value::BulkString(reply) = reply else { return Err(ReplyError::Shape) };
        let mut replay = Replay::new(self.calls.limits(), reply)?;
        for (nth, shared) in self.commands.iter().filter_map(PendingCommand::shared).enumerate() {
            let places = self.calls.places(nth);
            shared.with_call(|call| replay.next(call, places, shared.scope.is_part))?;
        }
        replay.finish()
    }

    /// Returns the commands of the calls that use a hash slot which the node does not hold, and the
    /// others, if the script replied so. The script then did nothing.
    fn split_not_here(
        &mut self,
        reply: &Value,
    ) -> Option<(Vec<PendingCommand>, Vec<PendingCommand>)> {
        let Value::BulkString(reply) = reply else { return None };
        let is_here = self.calls.calls_here(reply)?;
        let mut is_here = is_here.into_iter();
        let commands = std::mem::take(&mut self.commands).into_iter();
        Some(commands.partition(|_| !is_here.next().unwrap_or_default()))
    }
}

impl Connection {
    /// Passes the reply to a shared script call to the callers. If the script did nothing, because it
    /// must be loaded or the node does not hold the counters of other calls, queues the calls again,
    /// before those that wait. Returns the kind of error, if there was one, and how many calls failed.
    pub(super) fn complete_shared(
        &self,
        mut shared: SharedWrite,
        reply: &Value,
        pending: &mut VecDeque<PendingCommand>,
    ) -> Option<(FailureKind, usize)> {
        if let Some((elsewhere, here)) = shared.split_not_here(reply) {
            elsewhere.into_iter().for_each(|command| command.complete(Ok(CallReply::NotHere)));
            self.status.load.add(here.len());
            here.into_iter().rev().for_each(|command| pending.push_front(command));
            return None;
        }
        let results = match reply {
            Value::ServerError(error) => {
                let error = match ErrorReply::classify(error, &self.node.address) {
                    ErrorReply::NoScript => {
                        self.reload(shared.commands, pending);
                        return None;
                    }
                    ErrorReply::Redirect(redirect) => {
                        self.node.stats.record_redirect(&redirect);
                        self.node.refresh_needed.notify_one();
                        SendError::not_executed(FailureKind::Moving)
                    }
                    ErrorReply::Failed(failed) => {
                        self.record_error(failed.kind, || {
                            reply_text(error.code(), error.details())
                        });
                        failed
                    }
                };
                let failed_calls = shared.len();
                let fail = |command: PendingCommand| command.complete(Err(error));
                shared.commands.into_iter().for_each(fail);
                return Some((error.kind, failed_calls));
            }
            reply => shared.replay(reply),
        };
        let Ok(WriteResults { each, error_code }) = results else {
            // The store counts a reply that it cannot read.
            shared
                .commands
                .into_iter()
                .for_each(|one| one.complete(Ok(CallReply::Script(Value::Nil))));
            return None;
        };
        let lost = error_code.as_deref().map(|code| failure_kind(code, ""));
        let not_written_error = match lost {
            None | Some(FailureKind::Script) => SendError::SCRIPT_FAILED,
            Some(kind) => SendError::not_executed(kind),
        };
        let mut not_written = 0;
        for (command, result) in shared.commands.into_iter().zip(each) {
            command.complete(match result {
                CallResult::Decided(reply) => Ok(CallReply::Decided(reply)),
                CallResult::NoWindow => Err(SendError::not_executed(FailureKind::Script)),
                CallResult::PartlyWritten => Err(SendError::SCRIPT_FAILED),
                CallResult::NotWritten => {
                    not_written += 1;
                    Err(not_written_error)
                }
            });
        }
        let (Some(kind), Some(code)) = (lost, error_code) else { return None };
        self.record_error(kind, || format!("{code}: a counter was not written"));
        Some((kind, not_written))
    }
}
