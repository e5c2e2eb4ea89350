//! One pipelined connection to a Redis node, and its queue of commands.
//!
//! Each write contains all commands queued since the previous write. No timer delays a write. While
//! the connection is down, queued commands fail immediately, so no caller waits for a reconnect.
//! Not here: building a write (`connection_write`), choosing a connection (`node`), following
//! redirects (`cluster`), connecting (`dialer`).
//!
//! Invariant: a command is written a second time only if the server replied that it did not run.
//! If a written command is dropped without a reply, its outcome is unknown.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{RedisError, RedisResult, Value};
use tokio::time::Sleep;

use super::backoff::Backoff;
use super::circuit_breaker::PROBE_INTERVAL;
use super::connection_probe::ProbeResult;
use super::connection_state::{CloseReason, Connection};
use super::connection_write::{InFlight, InFlightBatch, WRITE_COMMANDS_MAX};
use super::error_reply::{
    ErrorReply, FORGOTTEN_SCRIPT, means_unavailable_node, reply_text, suggests_topology_change,
};
use super::node_state::NodeState;
use super::pending_command::{Batch, PendingCommand, SCRIPT_RELOADS_MAX};
use super::reply_slot::CallReply;
use crate::domain::{FailureKind, Micros};

/// Maximum number of writes in flight per connection. Two writes keep the server busy while a reply
/// is on the way. More writes would make the batches smaller, and a command sent alone costs Redis
/// twice as much as one in a batch of sixteen.
const BATCHES_IN_FLIGHT_MAX: usize = 2;

/// Minimum age of a connection whose loss resets the backoff, even if no reply has arrived on it.
/// Equal to the maximum backoff, so that the client reconnects at most once in that time.
const BACKOFF_RESET_AFTER: Micros = Micros::SECOND;

/// Minimum time for which a node must have been silent, beyond one round trip, before the load
/// estimate counts the replies as overdue.
const SILENCE_MIN: Micros = Micros(4_000);
/// Interval between checks of how long a node has been silent, while a batch is in flight.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_micros(SILENCE_MIN.0);
/// Interval between checks of whether the password has changed. Password files are read as often.
const PASSWORD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Connection {
    /// Connects, sends queued commands, and reconnects after a failure, until the client no longer
    /// uses the node.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        while let Some(connection) = self.connect(&mut backoff).await {
            self.record_connected();
            self.node.stats.connected.add(1);
            let opened_at = self.now();
            let reason = self.serve_until_closed(connection, &mut backoff).await;
            self.node.stats.connected.sub(1);
            if reason == CloseReason::NodeClosed {
                return;
            }
            // A server that closes idle connections has not failed, even if no call was made.
            let lasted = self.now().saturating_sub(opened_at);
            if reason == CloseReason::Lost && lasted >= BACKOFF_RESET_AFTER {
                backoff.record_success();
            }
            self.record_loss(reason);
        }
    }

    fn record_connected(&self) {
        self.node.stats.connects.add(1);
        self.node.record_connected();
    }

    fn record_loss(&self, reason: CloseReason) {
        let NodeState { context, address: node, stats, refresh_needed, .. } = &*self.node;
        stats.losses.add(1);
        context.lost_connections.fetch_add(1, Ordering::AcqRel);
        if reason == CloseReason::Lost {
            context.set_failure(node, FailureKind::Lost, "the connection was lost", None);
        }
        if let Some(suppressed) = context.log_limiter.admit("connection lost", node) {
            let reason = reason.as_str();
            tracing::warn!(%node, reason, suppressed, "a connection to Redis was lost");
        }
        refresh_needed.notify_one();
    }

    /// Returns the current time of the circuit breaker's clock, or zero if the node has no circuit
    /// breaker.
    fn now(&self) -> Micros {
        self.node.now().unwrap_or_default()
    }

    /// Tries to connect until an attempt succeeds. Rejects commands that are queued in the
    /// meantime. Returns `None` if the client no longer uses the node.
    async fn connect(&mut self, backoff: &mut Backoff) -> Option<MultiplexedConnection> {
        let Connection { node, status, dialer, queue, .. } = self;
        let dial = dialer.dial(backoff);
        tokio::pin!(dial);
        loop {
            tokio::select! {
                connection = &mut dial => return Some(connection),
                batch = queue.recv() => {
                    let batch = batch?;
                    status.load.remove(batch.len());
                    node.stats.not_connected.add(batch.len() as u64);
                    for command in batch {
                        command.reject(FailureKind::NotConnected);
                    }
                }
            }
        }
    }

    /// Sends commands or, while the circuit breaker is open, PINGs over a connection, until the
    /// connection must be reopened or the client no longer uses the node.
    async fn serve_until_closed(
        &mut self,
        mut connection: MultiplexedConnection,
        backoff: &mut Backoff,
    ) -> CloseReason {
        let mut first_ping = Duration::ZERO;
        loop {
            while self.node.is_open() {
                match self.probe(&connection, first_ping, backoff).await {
                    ProbeResult::Replied => {}
                    ProbeResult::Replaced(new) => {
                        self.node.stats.timeouts.add(1);
                        self.record_loss(CloseReason::Lost);
                        self.record_connected();
                        connection = new;
                        first_ping = Duration::ZERO;
                    }
                    ProbeResult::Closed(reason) => return reason,
                }
            }
            self.status.is_ready.store(true, Ordering::Release);
            let reason = self.serve(&connection, backoff).await;
            self.status.is_ready.store(false, Ordering::Release);
            if reason != CloseReason::BreakerOpened {
                return reason;
            }
            // The node may answer PINGs and still not serve, so the first one is not sent at once.
            first_ping = PROBE_INTERVAL;
        }
    }

    /// Sends queued commands over an open connection until it is closed or the circuit breaker
    /// opens.
    async fn serve(
        &mut self,
        connection: &MultiplexedConnection,
        backoff: &mut Backoff,
    ) -> CloseReason {
        let status = Arc::clone(&self.status);
        let mut batches = FuturesUnordered::new();
        let (mut incoming, mut closed) = (Vec::<Batch>::with_capacity(WRITE_COMMANDS_MAX), false);
        let mut outstanding = OutstandingCommands::default();
        let mut silence = SilenceTimer::new(self.node.context.config.silence_max);
        let mut password_check = tokio::time::interval(PASSWORD_CHECK_INTERVAL);
        let reason = loop {
            while batches.len() < BATCHES_IN_FLIGHT_MAX
                && let Some(batch) = self.write_batch(&mut outstanding.pending)
            {
                outstanding.record_write(&batch);
                silence.start(&batch);
                batches.push(send_batch(connection.clone(), batch));
            }
            if closed && batches.is_empty() {
                break CloseReason::NodeClosed;
            }
            tokio::select! {
                // Replies first, so that no answered command is reported as lost.
                biased;
                Some((batch, result)) = batches.next(), if !batches.is_empty() => {
                    match self.complete(batch, result, &mut outstanding) {
                        Ok(()) => backoff.record_success(),
                        Err(reason) => break reason,
                    }
                }
                () = status.signal.notified() => {
                    if status.is_broken.load(Ordering::Acquire) {
                        // The library has already completed every batch that was answered.
                        while let Some((batch, result)) = batches.next().await {
                            let _ = self.complete(batch, result, &mut outstanding);
                        }
                        break CloseReason::Lost;
                    }
                    if self.node.is_open() {
                        break CloseReason::BreakerOpened;
                    }
                }
                () = &mut silence.sleep, if silence.is_set => {
                    let left = self.time_until_open(outstanding.sent.front());
                    silence.reset(left);
                    let is_over = left == Some(Duration::ZERO);
                    if !is_over && self.silence(&outstanding) < SILENCE_MIN {
                        continue;
                    }
                    let is_silent = self.is_still_silent(is_over).await;
                    if let Some((batch, result)) = batches.next().now_or_never().flatten() {
                        if let Err(reason) = self.complete(batch, result, &mut outstanding) {
                            break reason;
                        }
                    } else if is_over && is_silent {
                        self.open_silent();
                        break CloseReason::BreakerOpened;
                    } else {
                        self.record_silence(&outstanding);
                    }
                }
                _ = password_check.tick(), if self.dialer.can_log_in_again() => self.dialer.log_in_again(connection),
                received = self.queue.recv_many(&mut incoming, WRITE_COMMANDS_MAX),
                    if !closed
                        && outstanding.pending.is_empty()
                        && batches.len() < BATCHES_IN_FLIGHT_MAX =>
                {
                    closed = received == 0;
                    outstanding.pending.extend(incoming.drain(..).flatten());
                }
            }
        };
        self.abandon(outstanding, reason);
        reason
    }

    /// Cleans up when the connection stops sending commands. Rejects the commands that were not
    /// written. Counts the commands that were written but got no reply as having an unknown outcome.
    fn abandon(&self, outstanding: OutstandingCommands, reason: CloseReason) {
        let OutstandingCommands { in_flight, pending, .. } = outstanding;
        self.status.load.remove(in_flight + pending.len());
        self.node.stats.unknown.add(in_flight as u64);
        let kind = match reason {
            CloseReason::BreakerOpened => FailureKind::BreakerOpen,
            CloseReason::NodeClosed | CloseReason::Lost | CloseReason::Demoted => {
                FailureKind::NotConnected
            }
        };
        for command in pending {
            command.reject(kind);
        }
    }

    /// Lets the `redis` crate read from the socket once more, and returns whether the node has
    /// still sent no reply. If `must_wait` is true, also waits 1 ms, in case the reader runs on
    /// another thread.
    async fn is_still_silent(&self, must_wait: bool) -> bool {
        let before = self.node.stats.answers.get();
        yield_to_reader(must_wait).await;
        self.node.stats.answers.get() == before
    }

    /// Opens the breaker of a silent node, and stores why.
    fn open_silent(&self) {
        let NodeState { context, address, .. } = &*self.node;
        let reason = format!("no reply for {:?}", context.config.silence_max);
        context.set_failure(address, FailureKind::TimedOut, &reason, None);
        self.node.record_silence();
    }

    /// Updates the load estimate with the time by which replies are overdue.
    fn record_silence(&self, outstanding: &OutstandingCommands) {
        if let Some(sent) = outstanding.sent.front() {
            self.meter.record_silence(&self.status.load, *sent, outstanding.in_flight, self.now());
        }
    }

    /// Returns how long the node has been silent, less the smallest round trip. Silence begins at
    /// the last reply on this connection or when the oldest batch in flight was written, whichever
    /// is later. Returns zero if no batch is in flight.
    fn silence(&self, outstanding: &OutstandingCommands) -> Micros {
        let oldest = outstanding.sent.front();
        oldest.map_or(Micros::ZERO, |sent| self.meter.silence(*sent, self.now()))
    }

    /// Returns the time left until the circuit breaker opens if the node sends no reply. Returns
    /// `None` if no command is waiting or there is no breaker. `oldest` is the time at which the
    /// oldest command in flight was written.
    fn time_until_open(&self, oldest: Option<&Micros>) -> Option<Duration> {
        let now = self.node.now()?;
        let since = self.node.last_reply_at().max(*oldest?);
        let silent = Duration::from_micros(now.saturating_sub(since).0);
        Some(self.node.context.config.silence_max.saturating_sub(silent))
    }

    /// Removes a completed batch from the outstanding commands, and passes each of its replies to its
    /// caller. Commands that failed with NOSCRIPT are queued again in `outstanding.pending`.
    ///
    /// # Errors
    ///
    /// Returns the reason if the connection must be closed.
    fn complete(
        &mut self,
        batch: InFlightBatch,
        result: RedisResult<Vec<Value>>,
        outstanding: &mut OutstandingCommands,
    ) -> Result<(), CloseReason> {
        let call_count = batch.call_count();
        let InFlightBatch { pipeline, commands, shared, sent } = batch;
        outstanding.in_flight -= call_count;
        outstanding.sent.pop_front();
        self.status.load.remove(call_count);
        let now = self.now();
        if let Some(sent) = sent {
            self.node.stats.round_trips.record(now.saturating_sub(sent).0);
        }
        if result.as_ref().is_err_and(RedisError::is_timeout) {
            self.node.stats.timeouts.add(1);
        }
        let Some(replies) = result.ok().filter(|replies| replies.len() == pipeline.len()) else {
            self.node.stats.unknown.add(call_count as u64);
            return Err(CloseReason::Lost);
        };
        self.node.stats.answers.add(call_count as u64);
        if let Some(sent) = sent {
            self.meter.record(&self.status.load, sent, now, call_count);
        }
        let mut replies = replies.into_iter();
        let mut at = 0;
        let mut demoted = false;
        let mut errors = 0;
        for InFlight { preceding_replies, mut command } in commands {
            at += preceding_replies + 1;
            let reply = replies.by_ref().nth(preceding_replies).unwrap_or_default();
            let Value::ServerError(error) = reply else {
                command.complete(Ok(CallReply::Script(reply)));
                continue;
            };
            if let Some(encoded) = command.encoded() {
                *encoded = pipeline.cmd_iter().nth(at - 1).cloned().unwrap_or_default();
            }
            match ErrorReply::classify(&error, &self.node.address) {
                ErrorReply::NoScript => self.reload([command], &mut outstanding.pending),
                ErrorReply::Redirect(redirect) => {
                    self.node.stats.record_redirect(&redirect);
                    command.redirect(redirect);
                }
                ErrorReply::Failed(failed) => {
                    demoted |= failed.kind == FailureKind::ReadOnly;
                    errors += u64::from(means_unavailable_node(failed.kind));
                    self.record_error(failed.kind, || reply_text(error.code(), error.details()));
                    command.complete(Err(failed));
                }
            }
        }
        if !shared.is_empty() {
            let reply = replies.by_ref().nth(shared.preceding_replies).unwrap_or_default();
            let failure = self.complete_shared(shared, &reply, &mut outstanding.pending);
            if let Some((kind, calls)) = failure {
                demoted |= kind == FailureKind::ReadOnly;
                errors += if means_unavailable_node(kind) { calls as u64 } else { 0 };
            }
        }
        self.node.record_replies(call_count, errors, now);
        if demoted { Err(CloseReason::Demoted) } else { Ok(()) }
    }

    /// Counts and logs an error reply of the node.
    pub(super) fn record_error(&self, kind: FailureKind, text: impl FnOnce() -> String) {
        self.node.stats.record_error(kind);
        if suggests_topology_change(kind) {
            self.node.refresh_needed.notify_one();
        }
        // Formats and locks, although a flood of calls may wait: only while calls fail, and less
        // than what their decision without Redis costs.
        self.node.context.log_failure(&self.node.address, kind, &text());
    }

    /// Queues the calls of one script call again, because the server does not know the script.
    pub(super) fn reload(
        &self,
        commands: impl IntoIterator<Item = PendingCommand>,
        pending: &mut VecDeque<PendingCommand>,
    ) {
        self.node.stats.noscript.add(1);
        for mut command in commands {
            if command.noscript_count < SCRIPT_RELOADS_MAX {
                command.noscript_count += 1;
                self.status.load.add(1);
                pending.push_back(command);
            } else {
                self.record_error(FailureKind::Script, || FORGOTTEN_SCRIPT.to_owned());
                command.reject(FailureKind::Script);
            }
        }
    }
}

/// Commands that a connection has removed from its queue and that have no reply yet.
#[derive(Default)]
pub(super) struct OutstandingCommands {
    /// Commands that have not been written to the connection yet.
    pub(super) pending: VecDeque<PendingCommand>,
    /// Number of commands that have been written and have no reply yet.
    in_flight: usize,
    /// Times at which the batches in flight were written, oldest first.
    sent: VecDeque<Micros>,
}

impl OutstandingCommands {
    fn record_write(&mut self, batch: &InFlightBatch) {
        self.in_flight += batch.call_count();
        self.sent.extend(batch.sent);
    }
}

/// Timer that fires every few milliseconds while a batch is in flight, to check how long the node
/// has been silent. A write does not restart the timer, because it costs less to recompute the
/// silence when the timer fires.
struct SilenceTimer {
    sleep: Pin<Box<Sleep>>,
    interval: Duration,
    is_set: bool,
}

impl SilenceTimer {
    /// Creates a stopped timer. Its interval is the shorter of [`SILENCE_CHECK_INTERVAL`] and
    /// `silence_max`.
    fn new(silence_max: Duration) -> Self {
        let interval = SILENCE_CHECK_INTERVAL.min(silence_max);
        SilenceTimer { sleep: Box::pin(tokio::time::sleep(interval)), interval, is_set: false }
    }

    /// Starts the timer for a batch that was sent, unless it runs.
    fn start(&mut self, batch: &InFlightBatch) {
        if batch.sent.is_some() && !self.is_set {
            self.reset(Some(self.interval));
        }
    }

    /// Restarts the timer. `left` is how much longer the node may stay silent; `None` stops the
    /// timer. The timer fires after `left` or after one interval, whichever is shorter. If `left`
    /// is zero, the timer fires after one interval.
    fn reset(&mut self, left: Option<Duration>) {
        self.is_set = left.is_some();
        if let Some(left) = left {
            let duration = if left.is_zero() { self.interval } else { left.min(self.interval) };
            self.sleep.set(tokio::time::sleep(duration));
        }
    }
}

/// Yields, so that the `redis` crate's task can read from the socket once more. Otherwise, if this
/// process was starved of CPU, the node might seem silent although it has replied.
async fn yield_to_reader(must_wait: bool) {
    for _ in 0..2 {
        // The runtime polls the sockets before it resumes a task that yielded.
        tokio::task::yield_now().await;
    }
    // With several runtime threads, the library's task may run on another one.
    if must_wait {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn send_batch(
    mut connection: MultiplexedConnection,
    batch: InFlightBatch,
) -> (InFlightBatch, RedisResult<Vec<Value>>) {
    let count = batch.pipeline.len();
    let result = connection.req_packed_commands(&batch.pipeline, 0, count).await;
    (batch, result)
}

#[cfg(test)]
mod tests;
