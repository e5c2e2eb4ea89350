//! A connection: one long-lived connection to one node, and the queue in front of it.
//!
//! What queued since the last write goes out as the next one; there is no timer. While the connection is
//! not connected its queue is answered at once, and nobody waits for a dial. Not here: choosing a
//! connection (`node`), following redirections (`cluster`), opening connections (`dial`).
//!
//! The rule that everything here serves: an item that was written is never written again unless
//! the server said that it did not run. A ticket that is dropped unanswered says "nobody knows".

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
use super::config::Monotonic;
use super::dialer::{DialError, Dialer, load};
use super::error_reply::{ErrorReply, Redirect};
use super::node_stats::NodeStats;
use super::pending_command::{Batch, InFlight, PendingCommand, Reply};
use super::transport::{SendError, SendErrorKind};
use crate::domain::{Executed, Micros};

/// One write carries at most so many items: at 128 a whole batch is answered in about half a
/// millisecond, at 1024 in eight, which is more than the budget of the last one in it.
const COMMANDS_MAX: usize = 128;
/// And about so many bytes: Redis reads 16 KiB from a connection before it serves the next one.
const BYTES_MAX: usize = 16 * 1024;
/// What the protocol adds to an argument: `$`, its length, two line ends.
const ARGUMENT_OVERHEAD: usize = 8;
/// Writes outstanding per connection. Two keep the server busy while a reply travels; more would make
/// the batches smaller, and Redis pays twice as much for an item alone as for one among sixteen.
const FLIGHTS_MAX: usize = 2;
/// Calls that may wait in a connection's queue. Four batches: what waits longer than that is past its
/// budget anyway, and an immediate answer is worth more to its caller.
pub(crate) const QUEUE_MAX: usize = 4 * COMMANDS_MAX;
/// An item is sent again after NOSCRIPT so many times; a server that forgets faster is broken.
const LOADS_MAX: u8 = 3;

/// The connection's own end of what it shares with its node.
pub(crate) struct Connection {
    pub(crate) dialer: Dialer,
    pub(crate) queue: mpsc::Receiver<Batch>,
    pub(crate) connected: Arc<AtomicBool>,
    pub(crate) counters: Arc<NodeStats>,
    /// Told when the topology may have changed.
    pub(crate) trouble: Arc<Notify>,
    /// The time, where round trips are measured.
    pub(crate) now: Option<Monotonic>,
}

/// Why a connection's service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The node was closed: the connection ends too.
    Closed,
    /// The connection broke, or its oldest reply is overdue.
    Lost,
    /// The server has become a replica.
    Demoted,
}

/// A write under way: the commands, and who waits for which reply.
struct InFlightBatch {
    pipeline: Pipeline,
    waiting: Vec<InFlight>,
    departed: Option<Micros>,
}

impl Connection {
    /// Runs until the node is dropped.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        while let Some(connection) = self.connect(&mut backoff).await {
            self.counters.connects.add(1);
            self.counters.connected.add(1);
            self.connected.store(true, Ordering::Release);
            let end = self.serve(&connection, &mut backoff).await;
            self.connected.store(false, Ordering::Release);
            self.counters.connected.sub(1);
            drop(PooledConnection::take(connection));
            if end == End::Closed {
                return;
            }
            self.counters.losses.add(1);
            tracing::warn!(node = %self.dialer.address(), ?end, "a connection to Redis was lost");
            self.trouble.notify_one();
        }
    }

    /// Dials until it works; `None` once the node is closed. Whoever calls meanwhile is refused.
    async fn connect(&mut self, backoff: &mut Backoff) -> Option<PooledConnection> {
        loop {
            if let Some(wait) = backoff.wait() {
                refusing(&mut self.queue, &self.counters, tokio::time::sleep(wait)).await?;
            }
            // A notice that an earlier connection left behind is not about the next one.
            let _ = self.dialer.broken.notified().now_or_never();
            match refusing(&mut self.queue, &self.counters, self.dialer.dial()).await? {
                Ok(connection) => return Some(connection),
                Err(error) => {
                    self.counters.dial_failures.add(1);
                    self.tell(backoff, &error);
                    match error {
                        DialError::Denied(_) => backoff.denied(),
                        DialError::NotMaster | DialError::Failed(_) => backoff.failed(),
                    }
                    self.trouble.notify_one();
                }
            }
        }
    }

    /// The first failure in a row is worth a line; the rest are counted.
    fn tell(&self, backoff: &Backoff, error: &DialError) {
        if backoff.is_repeated() {
            return;
        }
        let node = self.dialer.address();
        match error {
            DialError::NotMaster => tracing::warn!(%node, "the Redis node is not a master"),
            DialError::Denied(reason) => {
                tracing::error!(%node, reason, "Redis refuses our login or our commands");
            }
            DialError::Failed(reason) => {
                tracing::warn!(%node, reason, "Redis cannot be reached");
            }
        }
    }

    /// Carries items over one connection until it ends.
    async fn serve(&mut self, connection: &MultiplexedConnection, backoff: &mut Backoff) -> End {
        let broken = Arc::clone(&self.dialer.broken);
        let mut flights = FuturesUnordered::new();
        let mut incoming: Vec<Batch> = Vec::with_capacity(COMMANDS_MAX);
        let mut pending: VecDeque<PendingCommand> = VecDeque::with_capacity(COMMANDS_MAX);
        let mut outstanding = 0;
        let mut closed = false;
        let end = loop {
            while flights.len() < FLIGHTS_MAX
                && let Some(flight) = self.depart(&mut pending)
            {
                outstanding += flight.waiting.len();
                flights.push(fly(connection.clone(), flight));
            }
            if closed && flights.is_empty() {
                break End::Closed;
            }
            tokio::select! {
                // Replies first: what has been answered must not be reported as lost.
                biased;
                Some((flight, result)) = flights.next(), if !flights.is_empty() => {
                    outstanding -= flight.waiting.len();
                    match self.land(flight, result, &mut pending) {
                        Ok(()) => backoff.worked(),
                        Err(end) => break end,
                    }
                }
                () = broken.notified() => {
                    // The library has already answered every flight it could.
                    while let Some((flight, result)) = flights.next().await {
                        outstanding -= flight.waiting.len();
                        let _ = self.land(flight, result, &mut pending);
                    }
                    break End::Lost;
                }
                many = self.queue.recv_many(&mut incoming, COMMANDS_MAX),
                    if !closed && pending.is_empty() && flights.len() < FLIGHTS_MAX =>
                {
                    closed = many == 0;
                    pending.extend(incoming.drain(..).flatten());
                }
            }
        };
        self.counters.unknown.add(outstanding as u64);
        for ticket in pending {
            ticket.refuse(SendErrorKind::NotConnected);
        }
        end
    }

    /// Packs what waits into one write, without the items whose callers have gone.
    fn depart(&self, pending: &mut VecDeque<PendingCommand>) -> Option<InFlightBatch> {
        let mut pipeline = Pipeline::with_capacity(pending.len().min(COMMANDS_MAX));
        let mut waiting = Vec::with_capacity(pending.len().min(COMMANDS_MAX));
        let mut bytes = 0;
        let mut loaded = Vec::new();
        while waiting.len() < COMMANDS_MAX && bytes < BYTES_MAX {
            let Some(ticket) = pending.pop_front() else { break };
            if ticket.is_stale() {
                self.counters.stale.add(1);
                continue;
            }
            let before = pipeline.len();
            let script = ticket.item.script;
            if ticket.loads > 0 && !loaded.iter().any(|held| std::ptr::eq(*held, script)) {
                pipeline.add_command(load(script));
                loaded.push(script);
            }
            if ticket.asking {
                pipeline.cmd("ASKING");
            }
            bytes += size(&ticket);
            let skip = pipeline.len() - before;
            let (command, wait) = ticket.split(skip);
            pipeline.add_command(command);
            waiting.push(wait);
        }
        if waiting.is_empty() {
            return None;
        }
        self.counters.pipelines.add(1);
        self.counters.items.add(waiting.len() as u64);
        self.counters.sizes.note(waiting.len() as u64);
        Some(InFlightBatch { pipeline, waiting, departed: self.now.as_ref().map(Monotonic::now) })
    }

    /// Hands every reply to whoever waits for it. What has to be loaded goes back to `pending`.
    fn land(
        &self,
        flight: InFlightBatch,
        result: RedisResult<Vec<Value>>,
        pending: &mut VecDeque<PendingCommand>,
    ) -> Result<(), End> {
        let InFlightBatch { pipeline, waiting, departed } = flight;
        if let (Some(now), Some(departed)) = (&self.now, departed) {
            self.counters.round_trips.note(now.now().saturating_sub(departed).0);
        }
        let replies = match result {
            Ok(replies) if replies.len() == pipeline.len() => replies,
            Ok(_) => return Err(self.lost(&waiting)),
            Err(error) => {
                if error.is_timeout() {
                    self.counters.timeouts.add(1);
                }
                return Err(self.lost(&waiting));
            }
        };
        let mut replies = replies.into_iter();
        let mut at = 0;
        let mut demoted = false;
        for wait in waiting {
            at += wait.skip;
            let reply = replies.by_ref().nth(wait.skip).unwrap_or_default();
            let Value::ServerError(error) = reply else {
                wait.answer(Reply::Value(reply));
                at += 1;
                continue;
            };
            let fault = ErrorReply::of(&error, self.dialer.address());
            demoted |= error.code() == "READONLY";
            if let Some(ticket) = self.settle(fault, wait, || pipeline.cmd_iter().nth(at).cloned())
            {
                pending.push_back(ticket);
            }
            at += 1;
        }
        if demoted { Err(End::Demoted) } else { Ok(()) }
    }

    /// Answers an item that got an error reply, or gives it back to be sent again.
    fn settle(
        &self,
        fault: ErrorReply,
        wait: InFlight,
        command: impl FnOnce() -> Option<redis::Cmd>,
    ) -> Option<PendingCommand> {
        let counters = &self.counters;
        let refused = match fault {
            ErrorReply::NoScript => {
                counters.noscript.add(1);
                if wait.loads < LOADS_MAX
                    && let Some(command) = command()
                {
                    return Some(wait.load_again(command));
                }
                SendError { executed: Executed::No, fault: SendErrorKind::Script }
            }
            ErrorReply::Redirect(redirect) => {
                match redirect {
                    Redirect::Moved(_) => counters.moved.add(1),
                    Redirect::Ask(_) => counters.ask.add(1),
                    Redirect::TryAgain => counters.tryagain.add(1),
                }
                match command() {
                    Some(command) => {
                        wait.redirect(redirect, command);
                        return None;
                    }
                    None => SendError { executed: Executed::No, fault: SendErrorKind::Moving },
                }
            }
            ErrorReply::Refused(refused) => {
                counters.refused.add(1);
                refused
            }
        };
        if matches!(refused.fault, SendErrorKind::Moving | SendErrorKind::NotMaster) {
            self.trouble.notify_one();
        }
        wait.answer(Reply::Failed(refused));
        None
    }

    fn lost(&self, waiting: &[InFlight]) -> End {
        self.counters.unknown.add(waiting.len() as u64);
        End::Lost
    }
}

/// Does `work` and refuses whatever arrives in the meantime; `None` once the node is closed.
async fn refusing<W: Future>(
    queue: &mut mpsc::Receiver<Batch>,
    counters: &NodeStats,
    work: W,
) -> Option<W::Output> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Some(done),
            parcel = queue.recv() => for ticket in parcel? {
                counters.not_connected.add(1);
                ticket.refuse(SendErrorKind::NotConnected);
            },
        }
    }
}

async fn fly(
    mut connection: MultiplexedConnection,
    flight: InFlightBatch,
) -> (InFlightBatch, RedisResult<Vec<Value>>) {
    let count = flight.pipeline.len();
    let result = connection.req_packed_commands(&flight.pipeline, 0, count).await;
    (flight, result)
}

/// About how many bytes an item is on the wire.
fn size(ticket: &PendingCommand) -> usize {
    let length = |argument: Arg<&[u8]>| match argument {
        Arg::Simple(bytes) => bytes.len() + ARGUMENT_OVERHEAD,
        _ => ARGUMENT_OVERHEAD,
    };
    ticket.item.command.args_iter().map(length).sum()
}
