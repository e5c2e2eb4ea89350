//! Builds the batches that a connection writes. For plain charges (INCRBY), also tracks the
//! server's time and sets an expiry on each key.
//!
//! Not here: when to write, and replies to script calls (`connection`).

use redis::{Arg, Cmd, Pipeline, Value};

use super::connection::{Connection, InFlightBatch, OutstandingCommands, WRITE_COMMANDS_MAX};
use super::dialer::script_load;
use super::error_reply::{ErrorReply, is_read_only};
use super::pending_command::{NodeCommand, PendingCommand, WriteParts};
use super::plain_charge::{CompletedCharges, IncrbyReply, MergedCharges, decode_charge_reply};
use super::server_time::{ServerTime, ServerTimeSpan};
use super::shared_write::SharedWrite;
use super::transport::SendErrorKind;
use crate::domain::Micros;
use crate::store::redis::script::library::Script;

/// Approximate maximum size of one write, in bytes. Redis reads at most 16 KiB from a connection
/// before it serves the next connection.
const WRITE_BYTES_MAX: usize = 16 * 1024;
/// Approximate number of bytes that RESP adds to an argument: `$`, the length, and two CRLFs.
const ARGUMENT_OVERHEAD: usize = 8;

/// Problems with a node that were reported by error replies to plain charges (INCRBY) or to shared
/// script calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyFailures {
    pub(super) is_demoted: bool,
    /// Number of calls for which the node was unavailable.
    pub(super) unavailable_calls: u64,
    /// Whether the ACL denied INCRBY.
    pub(super) is_denied: bool,
}

impl ReplyFailures {
    /// Returns the problems that an error reply to a script call shows, which this many calls share.
    pub(super) fn of_calls(reply: &ErrorReply, calls: usize, is_demoted: bool) -> ReplyFailures {
        let unavailable_calls = if reply.means_unavailable_node() { calls as u64 } else { 0 };
        ReplyFailures { is_demoted, unavailable_calls, is_denied: false }
    }
}

impl Connection {
    /// Builds a batch from pending commands. Drops commands whose callers have stopped waiting,
    /// and rejects those whose reply can no longer arrive in time. Returns `None` if no command
    /// remains.
    pub(super) fn write_batch(
        &self,
        outstanding: &mut OutstandingCommands,
    ) -> Option<InFlightBatch> {
        let OutstandingCommands { pending, server_time, .. } = outstanding;
        let mut pipeline = Pipeline::with_capacity(pending.len().min(WRITE_COMMANDS_MAX));
        let mut commands = Vec::new();
        let mut bytes = 0;
        let mut loaded = Vec::new();
        let (mut charges, mut shared) = (MergedCharges::default(), SharedWrite::default());
        let now = self.breaker.as_ref().map(|breaker| breaker.clock.now());
        // A reply to a command written now arrives at this time at the earliest.
        let earliest_reply =
            now.map_or(Micros::ZERO, |now| now.saturating_add(self.meter.round_trip_min(now)));
        let is_time_known = now.is_some_and(|now| server_time.is_known_at(now));
        while pipeline.len() + shared.len() + 2 * charges.counter_count() < WRITE_COMMANDS_MAX
            && bytes + charges.wire_size + shared.wire_size() < WRITE_BYTES_MAX
            && pending.front().is_some_and(|command| shared.fits(command))
        {
            let Some(command) = pending.pop_front() else { break };
            let Some(command) = self.reject_unless_writable(command, earliest_reply, is_time_known)
            else {
                continue;
            };
            match split_after_loading(command, &mut pipeline, &mut loaded) {
                WriteParts::Script(command, in_flight) => {
                    bytes += wire_size(&command);
                    pipeline.add_command(command);
                    commands.push(in_flight);
                }
                WriteParts::Charges(call_charges, reply) => charges.add(call_charges, reply),
                WriteParts::Shared(command) => shared.add(command),
            }
        }
        for command in shared.take_few(self.dialer.config().shared_calls_min) {
            let command = command.into_script_call();
            if let WriteParts::Script(command, in_flight) =
                split_after_loading(command, &mut pipeline, &mut loaded)
            {
                pipeline.add_command(command);
                commands.push(in_flight);
            }
        }
        shared.write(&mut pipeline);
        charges.write(&mut pipeline);
        let batch = InFlightBatch { pipeline, commands, shared, charges, sent: now };
        if batch.call_count() == 0 {
            return None;
        }
        self.stats.writes.add(1);
        self.stats.calls.add(batch.call_count() as u64);
        self.stats.plain_calls.add(batch.charges.call_count() as u64);
        self.stats.write_sizes.record(batch.call_count() as u64);
        Some(batch)
    }

    /// Returns the command if it can still be written. Otherwise, drops or rejects the command and
    /// returns `None`.
    fn reject_unless_writable(
        &self,
        command: PendingCommand,
        earliest_reply: Micros,
        is_time_known: bool,
    ) -> Option<PendingCommand> {
        // First: a caller that leaves from now on must expect the command to run.
        if !command.mark_written() {
            self.load.remove(1);
            self.stats.abandoned.add(1);
            return None;
        }
        if command.deadline < earliest_reply {
            self.load.remove(1);
            self.stats.shed.add(1);
            command.reject(SendErrorKind::Overload);
            return None;
        }
        if !is_time_known && matches!(command.call, NodeCommand::Charges(_)) {
            self.load.remove(1);
            command.reject(SendErrorKind::UnknownTime);
            return None;
        }
        Some(command)
    }

    /// Records the server time that a script's reply contains, if the server supports plain charges
    /// (INCRBY).
    pub(super) fn record_server_time(
        &self,
        server_time: &mut ServerTime,
        script_time: Micros,
        sent: Micros,
        received: Micros,
    ) {
        if self.dialer.supports_charges() {
            server_time.record(script_time, sent, received);
            self.server_time_expiry.set(server_time.valid_until());
        }
    }

    /// Disables plain charges (INCRBY) on this connection until it reconnects. Until then, scripts
    /// decide all calls.
    pub(super) fn forbid_charges(&self, server_time: &mut ServerTime) {
        self.dialer.forbid_charges();
        *server_time = ServerTime::default();
        self.server_time_expiry.set(Micros::ZERO);
    }

    /// Passes the replies to the INCRBY commands of a write to the waiting callers. Returns the
    /// refunds to write next, and the problems with the node that the error replies report.
    pub(super) fn complete_charges(
        &self,
        charges: MergedCharges,
        replies: impl Iterator<Item = Value>,
        span: Option<ServerTimeSpan>,
    ) -> (Vec<PendingCommand>, ReplyFailures) {
        let mut failures = ReplyFailures::default();
        let mut decode = |reply: Value| {
            failures.is_demoted |=
                matches!(&reply, Value::ServerError(error) if is_read_only(error));
            let (value, error) = decode_charge_reply(&reply, self.dialer.address());
            failures.is_denied |= value.is_err_and(|error| error.kind == SendErrorKind::Denied);
            let is_node_unavailable =
                error.as_ref().is_some_and(ErrorReply::means_unavailable_node);
            if let Some(error) = error {
                self.record_charge_error(&error);
            }
            IncrbyReply { value, is_node_unavailable }
        };
        let replies: Vec<IncrbyReply> = replies.map(&mut decode).collect();
        let CompletedCharges { unavailable_calls, refunds } = charges.complete(&replies, span);
        failures.unavailable_calls = unavailable_calls;
        (refunds, failures)
    }

    fn record_charge_error(&self, error: &ErrorReply) {
        match error {
            ErrorReply::Redirect(redirect) => {
                self.stats.record_redirect(redirect);
                self.refresh_needed.notify_one();
            }
            ErrorReply::NoScript => self.stats.errors.add(1),
            ErrorReply::Failed(error) => {
                self.stats.errors.add(1);
                if error.kind.suggests_topology_change() {
                    self.refresh_needed.notify_one();
                }
            }
        }
    }
}

/// Splits a command. Before it, loads its script if the server does not know it, and sends ASKING if
/// the command needs it.
fn split_after_loading(
    command: PendingCommand,
    pipeline: &mut Pipeline,
    loaded: &mut Vec<&'static Script>,
) -> WriteParts {
    let before = pipeline.len();
    if let Some(script) = command.script()
        && command.noscript_count > 0
        && !loaded.iter().any(|held| std::ptr::eq(*held, script))
    {
        pipeline.add_command(script_load(script));
        loaded.push(script);
    }
    if command.asking {
        pipeline.cmd("ASKING");
    }
    command.split(pipeline.len() - before)
}

/// Returns the approximate size of an encoded command, in bytes.
fn wire_size(command: &Cmd) -> usize {
    let length = |argument: Arg<&[u8]>| match argument {
        Arg::Simple(bytes) => bytes.len() + ARGUMENT_OVERHEAD,
        _ => ARGUMENT_OVERHEAD,
    };
    command.args_iter().map(length).sum()
}
