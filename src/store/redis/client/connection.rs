//! One pipelined connection to a Redis node, and its queue of commands.
//!
//! Each write contains all commands queued since the previous write; there is no timer. While the
//! connection is down, queued commands fail immediately, so no caller waits for a reconnect. Not
//! here: choosing a connection (`node`), following redirections (`cluster`), connecting (`dialer`).
//!
//! Invariant: a command is written a second time only if the server answered that it did not run.
//! If a written command is dropped without a reply, its outcome is unknown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_redis::Connection as PooledConnection;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Arg, Pipeline, RedisResult, Value};
use tokio::sync::{Notify, mpsc};

use super::backoff::Backoff;
use super::config::MonotonicClock;
use super::dialer::{ConnectError, Dialer, script_load};
use super::error_reply::{ErrorReply, Redirect};
use super::node_stats::NodeStats;
use super::pending_command::{Batch, CommandReply, InFlight, PendingCommand};
use super::transport::{SendError, SendErrorKind};
use crate::domain::Micros;

/// Maximum number of commands in one write. Redis answers a batch of 128 in about 0.5 ms; a batch
/// of 1024 takes 8 ms, more than the budget of its last command.
const COMMANDS_MAX: usize = 128;
/// Approximate maximum size of one write, in bytes. Redis reads 16 KiB from a connection before it
/// serves the next connection.
const BYTES_MAX: usize = 16 * 1024;
/// Approximate number of bytes that RESP adds to an argument: `$`, the length, and two line ends.
const ARGUMENT_OVERHEAD: usize = 8;
/// Maximum number of writes in flight per connection. Two keep the server busy while a reply
/// travels. More would make batches smaller, and a command sent alone costs Redis twice as much as
/// one in a batch of sixteen.
const BATCHES_IN_FLIGHT_MAX: usize = 2;
/// Maximum number of calls in the queue of a connection: four batches. A call behind a full queue
/// would miss its budget, so it is rejected immediately.
pub(crate) const QUEUE_MAX: usize = 4 * COMMANDS_MAX;
/// Maximum number of times that a command is sent again after NOSCRIPT. After three times, the
/// server apparently loses its scripts as fast as they are loaded.
const RELOADS_MAX: u8 = 3;

/// Task that opens, serves, and reopens one connection.
pub(crate) struct Connection {
    pub(crate) dialer: Dialer,
    pub(crate) queue: mpsc::Receiver<Batch>,
    pub(crate) connected: Arc<AtomicBool>,
    pub(crate) stats: Arc<NodeStats>,
    /// Notified when the connection fails, or when an error reply shows that the topology may have
    /// changed.
    pub(crate) refresh_needed: Arc<Notify>,
    /// Clock for measuring round trips; `None` if they are not measured.
    pub(crate) clock: Option<MonotonicClock>,
}

/// Reason why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseReason {
    /// The node was dropped, so the connection is not reopened.
    NodeClosed,
    /// The connection broke, or its oldest command was not answered within the reply timeout.
    Lost,
    /// The server answered READONLY: it has become a replica.
    Demoted,
}

/// Batch of commands that was written and whose replies have not arrived.
struct InFlightBatch {
    pipeline: Pipeline,
    commands: Vec<InFlight>,
    sent: Option<Micros>,
}

impl Connection {
    /// Connects, sends the queued commands, and reconnects, until the node is dropped.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        while let Some(connection) = self.connect(&mut backoff).await {
            self.stats.connects.add(1);
            self.stats.connected.add(1);
            self.connected.store(true, Ordering::Release);
            let reason = self.serve(&connection, &mut backoff).await;
            self.connected.store(false, Ordering::Release);
            self.stats.connected.sub(1);
            drop(PooledConnection::take(connection));
            if reason == CloseReason::NodeClosed {
                return;
            }
            self.stats.losses.add(1);
            tracing::warn!(node = %self.dialer.address(), ?reason, "a connection to Redis was lost");
            self.refresh_needed.notify_one();
        }
    }

    /// Retries connecting until it succeeds. Rejects the commands that are queued meanwhile.
    /// Returns `None` if the node is dropped.
    async fn connect(&mut self, backoff: &mut Backoff) -> Option<PooledConnection> {
        loop {
            if let Some(wait) = backoff.next_wait() {
                reject_commands_until(&mut self.queue, &self.stats, tokio::time::sleep(wait))
                    .await?;
            }
            // Discard a notification that an earlier connection left behind.
            let _ = self.dialer.disconnected.notified().now_or_never();
            match reject_commands_until(&mut self.queue, &self.stats, self.dialer.connect()).await?
            {
                Ok(connection) => return Some(connection),
                Err(error) => {
                    self.stats.connect_failures.add(1);
                    self.log_failure(backoff, &error);
                    backoff.record_failure(matches!(error, ConnectError::Denied(_)));
                    self.refresh_needed.notify_one();
                }
            }
        }
    }

    /// Logs a connection failure, unless the previous attempt failed too.
    fn log_failure(&self, backoff: &Backoff, error: &ConnectError) {
        if backoff.is_repeated() {
            return;
        }
        let node = self.dialer.address();
        match error {
            ConnectError::NotMaster => tracing::warn!(%node, "the Redis node is not a master"),
            ConnectError::Denied(reason) => {
                tracing::error!(%node, reason, "Redis denied our login or a command");
            }
            ConnectError::Failed(reason) => {
                tracing::warn!(%node, reason, "cannot connect to Redis");
            }
        }
    }

    /// Sends queued commands over an open connection until the connection is closed.
    async fn serve(
        &mut self,
        connection: &MultiplexedConnection,
        backoff: &mut Backoff,
    ) -> CloseReason {
        let disconnected = Arc::clone(&self.dialer.disconnected);
        let mut batches = FuturesUnordered::new();
        let mut incoming: Vec<Batch> = Vec::with_capacity(COMMANDS_MAX);
        let mut pending: VecDeque<PendingCommand> = VecDeque::with_capacity(COMMANDS_MAX);
        let mut in_flight = 0;
        let mut closed = false;
        let reason = loop {
            while batches.len() < BATCHES_IN_FLIGHT_MAX
                && let Some(batch) = self.write_batch(&mut pending)
            {
                in_flight += batch.commands.len();
                batches.push(send(connection.clone(), batch));
            }
            if closed && batches.is_empty() {
                break CloseReason::NodeClosed;
            }
            tokio::select! {
                // Replies first, so that no answered command is reported as lost.
                biased;
                Some((batch, result)) = batches.next(), if !batches.is_empty() => {
                    in_flight -= batch.commands.len();
                    match self.dispatch_replies(batch, result, &mut pending) {
                        Ok(()) => backoff.record_success(),
                        Err(reason) => break reason,
                    }
                }
                () = disconnected.notified() => {
                    // The library has already completed every batch that was answered.
                    while let Some((batch, result)) = batches.next().await {
                        in_flight -= batch.commands.len();
                        let _ = self.dispatch_replies(batch, result, &mut pending);
                    }
                    break CloseReason::Lost;
                }
                received = self.queue.recv_many(&mut incoming, COMMANDS_MAX),
                    if !closed && pending.is_empty() && batches.len() < BATCHES_IN_FLIGHT_MAX =>
                {
                    closed = received == 0;
                    pending.extend(incoming.drain(..).flatten());
                }
            }
        };
        self.stats.unknown.add(in_flight as u64);
        for command in pending {
            command.reject(SendErrorKind::NotConnected);
        }
        reason
    }

    /// Moves pending commands into one batch, and drops those whose callers have stopped waiting.
    /// Returns `None` if there is nothing to write.
    fn write_batch(&self, pending: &mut VecDeque<PendingCommand>) -> Option<InFlightBatch> {
        let mut pipeline = Pipeline::with_capacity(pending.len().min(COMMANDS_MAX));
        let mut commands = Vec::with_capacity(pending.len().min(COMMANDS_MAX));
        let mut bytes = 0;
        let mut loaded = Vec::new();
        while commands.len() < COMMANDS_MAX && bytes < BYTES_MAX {
            let Some(command) = pending.pop_front() else { break };
            if command.is_abandoned() {
                self.stats.abandoned.add(1);
                continue;
            }
            let before = pipeline.len();
            let script = command.call.script;
            if command.loads > 0 && !loaded.iter().any(|held| std::ptr::eq(*held, script)) {
                pipeline.add_command(script_load(script));
                loaded.push(script);
            }
            if command.asking {
                pipeline.cmd("ASKING");
            }
            bytes += wire_size(&command);
            let (command, in_flight) = command.split(pipeline.len() - before);
            pipeline.add_command(command);
            commands.push(in_flight);
        }
        if commands.is_empty() {
            return None;
        }
        self.stats.writes.add(1);
        self.stats.script_calls.add(commands.len() as u64);
        self.stats.write_sizes.record(commands.len() as u64);
        let sent = self.clock.as_ref().map(MonotonicClock::now);
        Some(InFlightBatch { pipeline, commands, sent })
    }

    /// Sends every reply of a batch to its caller. Commands answered with NOSCRIPT return to
    /// `pending`.
    ///
    /// # Errors
    ///
    /// Returns the reason for closing the connection.
    fn dispatch_replies(
        &self,
        batch: InFlightBatch,
        result: RedisResult<Vec<Value>>,
        pending: &mut VecDeque<PendingCommand>,
    ) -> Result<(), CloseReason> {
        let InFlightBatch { pipeline, commands, sent } = batch;
        if let (Some(clock), Some(sent)) = (&self.clock, sent) {
            self.stats.round_trips.record(clock.now().saturating_sub(sent).0);
        }
        let replies = match result {
            Ok(replies) if replies.len() == pipeline.len() => replies,
            Ok(_) => return Err(self.connection_lost(&commands)),
            Err(error) => {
                if error.is_timeout() {
                    self.stats.timeouts.add(1);
                }
                return Err(self.connection_lost(&commands));
            }
        };
        let mut replies = replies.into_iter();
        let mut at = 0;
        let mut demoted = false;
        for in_flight in commands {
            at += in_flight.skip;
            let reply = replies.by_ref().nth(in_flight.skip).unwrap_or_default();
            let Value::ServerError(error) = reply else {
                in_flight.complete(CommandReply::Value(reply));
                at += 1;
                continue;
            };
            let reply = ErrorReply::classify(&error, self.dialer.address());
            demoted |= error.code() == "READONLY";
            let command = || pipeline.cmd_iter().nth(at).cloned();
            pending.extend(self.handle_error(reply, in_flight, command));
            at += 1;
        }
        if demoted { Err(CloseReason::Demoted) } else { Ok(()) }
    }

    /// Handles the error reply to a command. Returns the command if it must be sent again, and
    /// otherwise passes the error to its caller.
    fn handle_error(
        &self,
        reply: ErrorReply,
        in_flight: InFlight,
        command: impl FnOnce() -> Option<redis::Cmd>,
    ) -> Option<PendingCommand> {
        let stats = &self.stats;
        let error = match reply {
            ErrorReply::NoScript => {
                stats.noscript.add(1);
                if in_flight.loads < RELOADS_MAX
                    && let Some(command) = command()
                {
                    return Some(in_flight.reload(command));
                }
                SendError::not_executed(SendErrorKind::Script)
            }
            ErrorReply::Redirect(redirect) => {
                match redirect {
                    Redirect::Moved(_) => stats.moved.add(1),
                    Redirect::Ask(_) => stats.ask.add(1),
                    Redirect::TryAgain => stats.tryagain.add(1),
                }
                match command() {
                    Some(command) => {
                        in_flight.redirect(redirect, command);
                        return None;
                    }
                    None => SendError::not_executed(SendErrorKind::Moving),
                }
            }
            ErrorReply::Failed(error) => {
                stats.errors.add(1);
                error
            }
        };
        if matches!(error.kind, SendErrorKind::Moving | SendErrorKind::NotMaster) {
            self.refresh_needed.notify_one();
        }
        in_flight.complete(CommandReply::Failed(error));
        None
    }

    fn connection_lost(&self, commands: &[InFlight]) -> CloseReason {
        self.stats.unknown.add(commands.len() as u64);
        CloseReason::Lost
    }
}

/// Waits until `work` completes and returns its output. Rejects the commands that are queued
/// meanwhile. Returns `None` if the node is dropped.
async fn reject_commands_until<W: Future>(
    queue: &mut mpsc::Receiver<Batch>,
    stats: &NodeStats,
    work: W,
) -> Option<W::Output> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Some(done),
            batch = queue.recv() => for command in batch? {
                stats.not_connected.add(1);
                command.reject(SendErrorKind::NotConnected);
            },
        }
    }
}

async fn send(
    mut connection: MultiplexedConnection,
    batch: InFlightBatch,
) -> (InFlightBatch, RedisResult<Vec<Value>>) {
    let count = batch.pipeline.len();
    let result = connection.req_packed_commands(&batch.pipeline, 0, count).await;
    (batch, result)
}

/// Returns the approximate size of a command on the wire, in bytes.
fn wire_size(command: &PendingCommand) -> usize {
    let length = |argument: Arg<&[u8]>| match argument {
        Arg::Simple(bytes) => bytes.len() + ARGUMENT_OVERHEAD,
        _ => ARGUMENT_OVERHEAD,
    };
    command.call.command.args_iter().map(length).sum()
}
