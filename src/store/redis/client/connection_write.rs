//! Builds the batches that a connection writes. For plain charges (INCRBY), also tracks the
//! server's time and sets an expiry on each key.
//!
//! Not here: when to write, and replies to script calls (`connection`).

use redis::{Arg, Cmd, Pipeline, Value};

use super::connection::{Connection, InFlightBatch, OutstandingCommands, WRITE_COMMANDS_MAX};
use super::dialer::script_load;
use super::error_reply::{ErrorReply, Redirect, is_read_only};
use super::pending_command::{
    CommandReply, EncodedCommands, InFlight, NodeCommand, PendingCommand,
};
use super::plain_charge::{ChargeReplies, Expiries, decode_charge_reply};
use super::server_time::{ServerTime, ServerTimeSpan};
use super::transport::SendErrorKind;
use crate::domain::Micros;

/// Approximate maximum size of one write, in bytes. Redis reads at most 16 KiB from a connection
/// before it serves the next connection.
const WRITE_BYTES_MAX: usize = 16 * 1024;
/// Approximate number of bytes that RESP adds to an argument: `$`, the length, and two CRLFs.
const ARGUMENT_OVERHEAD: usize = 8;

/// Problems with a node that were reported by the error replies to one call's plain charges
/// (INCRBY).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChargeFailures {
    pub(super) is_demoted: bool,
    pub(super) is_node_unavailable: bool,
    /// Whether the ACL denied INCRBY.
    pub(super) is_denied: bool,
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
        let mut commands = Vec::with_capacity(pending.len().min(WRITE_COMMANDS_MAX));
        let mut bytes = 0;
        let mut loaded = Vec::new();
        let mut expiries = Expiries::default();
        let mut plain_calls = 0;
        let now = self.breaker.as_ref().map(|breaker| breaker.clock.now());
        // A reply to a command written now arrives at this time at the earliest.
        let earliest_reply =
            now.map_or(Micros::ZERO, |now| now.saturating_add(self.meter.round_trip_min(now)));
        let is_time_known = now.is_some_and(|now| server_time.is_known_at(now));
        while pipeline.len() + expiries.len() < WRITE_COMMANDS_MAX && bytes < WRITE_BYTES_MAX {
            let Some(command) = pending.pop_front() else { break };
            let Some(command) = self.reject_unless_writable(command, earliest_reply, is_time_known)
            else {
                continue;
            };
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
            let (written, in_flight) = command.split(pipeline.len() - before);
            match written {
                EncodedCommands::Script(command) => {
                    bytes += wire_size(&command);
                    pipeline.add_command(command);
                }
                EncodedCommands::Charges(charges) => {
                    plain_calls += 1;
                    for charge in charges {
                        bytes += 2 * wire_size(&charge.command);
                        expiries.add(&charge);
                        pipeline.add_command(charge.command);
                    }
                }
            }
            commands.push(in_flight);
        }
        if commands.is_empty() {
            return None;
        }
        expiries.write(&mut pipeline);
        self.stats.writes.add(1);
        self.stats.calls.add(commands.len() as u64);
        self.stats.plain_calls.add(plain_calls);
        self.stats.write_sizes.record(commands.len() as u64);
        Some(InFlightBatch { pipeline, commands, sent: now })
    }

    /// Returns the command if it can still be written. Otherwise, drops or rejects the command and
    /// returns `None`.
    fn reject_unless_writable(
        &self,
        command: PendingCommand,
        earliest_reply: Micros,
        is_time_known: bool,
    ) -> Option<PendingCommand> {
        if command.is_abandoned() {
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

    /// Passes the replies to plain charges (INCRBY) to the waiting caller. Returns the problems
    /// with the node that the error replies report.
    pub(super) fn complete_charges(
        &self,
        in_flight: InFlight,
        replies: impl Iterator<Item = Value>,
        span: Option<ServerTimeSpan>,
    ) -> ChargeFailures {
        let mut failures = ChargeFailures::default();
        let mut charged = ChargeReplies::new();
        for reply in replies {
            failures.is_demoted |=
                matches!(&reply, Value::ServerError(error) if is_read_only(error));
            let (reply, error) = decode_charge_reply(&reply, self.dialer.address(), span);
            charged.push(reply);
            let Some(error) = error else { continue };
            failures.is_node_unavailable |= error.means_unavailable_node();
            failures.is_denied |= reply.is_error(SendErrorKind::Denied);
            match error {
                ErrorReply::Redirect(redirect) => {
                    match redirect {
                        Redirect::Moved(_) => self.stats.moved.add(1),
                        Redirect::Ask(_) => self.stats.ask.add(1),
                        Redirect::TryAgain => self.stats.tryagain.add(1),
                    }
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
        in_flight.complete(CommandReply::Charged(charged));
        failures
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
