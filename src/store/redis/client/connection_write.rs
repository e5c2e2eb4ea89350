//! Builds the batches that a connection writes.
//!
//! Not here: when to write, and replies to script calls (`connection`).

use std::collections::VecDeque;

use redis::{Arg, Cmd, Pipeline};

use super::connection_state::Connection;
use super::pending_command::PendingCommand;
use super::shared_write::SharedWrite;
use crate::domain::{FailureKind, Micros};
use crate::store::redis::script::library::Script;

/// Maximum number of commands in one write. Redis executes a batch of 128 in about 0.5 ms. A batch
/// of 1024 takes 8 ms, which is half of the budget that Envoy's default timeout allows.
pub(super) const WRITE_COMMANDS_MAX: usize = 128;
/// Approximate maximum size of one write, in bytes. Redis reads at most 16 KiB from a connection
/// before it serves the next connection.
const WRITE_BYTES_MAX: usize = 16 * 1024;
/// Approximate number of bytes that RESP adds to an argument: `$`, the length, and two CRLFs.
const ARGUMENT_OVERHEAD: usize = 8;

/// Batch of commands that were written and are waiting for their replies.
pub(super) struct InFlightBatch {
    pub(super) pipeline: Pipeline,
    /// Script calls of one call each, in the order in which they were written. The script call that
    /// calls share follows.
    pub(super) commands: Vec<InFlight>,
    pub(super) shared: SharedWrite,
    /// Time at which the batch was written, according to the circuit breaker's clock; `None` if the
    /// node has no circuit breaker.
    pub(super) sent: Option<Micros>,
}

impl InFlightBatch {
    pub(super) fn call_count(&self) -> usize {
        self.commands.len() + self.shared.len()
    }
}

/// Script call that was written and has no reply yet. If dropped, its caller receives
/// [`SendError::LOST`](super::send_error::SendError::LOST).
pub(super) struct InFlight {
    /// Number of replies (to SCRIPT LOAD and ASKING) that precede the command's own reply.
    pub(super) preceding_replies: usize,
    /// The command, whose encoded script call is in the pipeline.
    pub(super) command: PendingCommand,
}

/// Script calls of a batch that are not shared, while the batch is built.
#[derive(Default)]
struct OwnScriptCalls {
    pipeline: Pipeline,
    commands: Vec<InFlight>,
    bytes: usize,
    /// Scripts that the batch loads before their first call.
    loaded: Vec<&'static Script>,
}

impl OwnScriptCalls {
    /// Adds a command. Before it, loads its script if the server does not know it, and sends ASKING
    /// if the command needs it.
    ///
    /// # Errors
    ///
    /// Returns a call that shares a script call with others.
    fn add(&mut self, mut command: PendingCommand) -> Result<(), PendingCommand> {
        let OwnScriptCalls { pipeline, commands, bytes, loaded } = self;
        let Some(encoded) = command.encoded().map(std::mem::take) else { return Err(command) };
        let before = pipeline.len();
        if let Some(script) = command.script_to_load()
            && !loaded.iter().any(|held| std::ptr::eq(*held, script))
        {
            pipeline.add_command(script.load_command());
            loaded.push(script);
        }
        if command.asking {
            pipeline.cmd("ASKING");
        }
        commands.push(InFlight { preceding_replies: pipeline.len() - before, command });
        *bytes += wire_size(&encoded);
        pipeline.add_command(encoded);
        Ok(())
    }
}

impl Connection {
    /// Builds a batch from pending commands. Drops commands whose callers have stopped waiting,
    /// and rejects those whose reply can no longer arrive in time. Returns `None` if no command
    /// remains.
    pub(super) fn write_batch(
        &self,
        pending: &mut VecDeque<PendingCommand>,
    ) -> Option<InFlightBatch> {
        let mut own = OwnScriptCalls {
            pipeline: Pipeline::with_capacity(pending.len().min(WRITE_COMMANDS_MAX)),
            ..OwnScriptCalls::default()
        };
        let mut shared = SharedWrite::default();
        let now = self.node.now();
        // A reply to a command written now arrives at this time at the earliest.
        let earliest_reply =
            now.map_or(Micros::ZERO, |now| now.saturating_add(self.meter.round_trip_min(now)));
        while own.pipeline.len() + shared.len() < WRITE_COMMANDS_MAX
            && own.bytes + shared.wire_size() < WRITE_BYTES_MAX
            && pending.front().is_some_and(|command| shared.fits(command))
        {
            let Some(command) = pending.pop_front() else { break };
            let Some(command) = self.reject_unless_writable(command, earliest_reply) else {
                continue;
            };
            if let Err(sharing) = own.add(command) {
                shared.add(sharing);
            }
        }
        for command in shared.take_few(self.node.context.config.shared_calls_min) {
            // It is a script call now, and is added.
            let _ = own.add(command.into_script_call());
        }
        let OwnScriptCalls { mut pipeline, commands, .. } = own;
        shared.write(&mut pipeline);
        let batch = InFlightBatch { pipeline, commands, shared, sent: now };
        if batch.call_count() == 0 {
            return None;
        }
        let stats = &self.node.stats;
        stats.writes.add(1);
        stats.calls.add(batch.call_count() as u64);
        stats.write_sizes.record(batch.call_count() as u64);
        Some(batch)
    }

    /// Returns the command if it can still be written. Otherwise, drops or rejects the command and
    /// returns `None`.
    fn reject_unless_writable(
        &self,
        command: PendingCommand,
        earliest_reply: Micros,
    ) -> Option<PendingCommand> {
        // First: a caller that leaves from now on must expect the command to run.
        if !command.mark_written() {
            self.status.load.remove(1);
            self.node.stats.abandoned.add(1);
            return None;
        }
        if command.deadline < earliest_reply {
            self.status.load.remove(1);
            self.node.stats.shed.add(1);
            command.reject(FailureKind::Overload);
            return None;
        }
        Some(command)
    }
}

/// Returns the approximate size of an encoded command, in bytes.
fn wire_size(command: &Cmd) -> usize {
    let length = |argument: Arg<&[u8]>| match argument {
        Arg::Simple(bytes) => bytes.len() + ARGUMENT_OVERHEAD,
        _ => ARGUMENT_OVERHEAD,
    };
    command.args_iter().map(length).sum()
}
