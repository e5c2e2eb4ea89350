//! One Redis node: its address, connections, circuit breaker, and statistics.
//!
//! Not here: the connection task (`connection`), finding the node that holds a key (`cluster`).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::config::Address;
use super::connection::{Connection, QUEUE_MAX};
use super::connection_load::{ConnectionLoad, LoadMeter};
use super::dialer::{ClientContext, ConnectionSignal, Dialer};
use super::info::NodeInfo;
use super::loss_detector::LossDetector;
use super::node_breaker::NodeBreaker;
use super::node_stats::{NodeReport, NodeStats};
use super::pending_command::{Batch, NodeCommand, PendingCommand, PendingReply};
use super::server_time::ServerTimeExpiry;
use super::transport::{ScriptCall, SendErrorKind};
use crate::domain::Micros;

/// Interval at which one call is sent even if, by the load estimate, it would miss its deadline.
const LOAD_PROBE_INTERVAL: Micros = Micros(100_000);

thread_local! {
    /// Index of this thread's runtime in `RedisConfig::worker_runtimes`; `None` on other threads.
    /// Set by the connection tasks that run on the thread.
    static WORKER_INDEX: Cell<Option<usize>> = const { Cell::new(None) };
}

/// One Redis server and the connections to it, which are opened in the background and closed when
/// the node is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    address: Address,
    connections: Box<[ConnectionHandle]>,
    /// Round-robin counter that picks a connection for callers outside the worker runtimes.
    next_connection: AtomicUsize,
    stats: Arc<NodeStats>,
    refresh_needed: Arc<Notify>,
    breaker: Option<Arc<NodeBreaker>>,
    /// Time from which the next call is sent regardless of the load estimate, in microseconds of
    /// the breaker's clock.
    next_load_probe: AtomicU64,
    /// Whether the node has owned hash slots at any time since this client began to connect to it.
    has_owned_slots: AtomicBool,
    info: ArcSwapOption<NodeInfo>,
}

/// Handle through which callers queue commands for a connection task.
#[derive(Debug)]
struct ConnectionHandle {
    queue: mpsc::Sender<Batch>,
    /// Whether the connection is open and accepts commands.
    ready: Arc<AtomicBool>,
    load: Arc<ConnectionLoad>,
    server_time_expiry: Arc<ServerTimeExpiry>,
}

impl Node {
    /// Starts opening the node's connections, on the worker runtimes if there are any, otherwise on
    /// the current runtime. `refresh_needed` is notified whenever a connection is lost or cannot be
    /// opened.
    pub(crate) fn open(
        context: &Arc<ClientContext>,
        address: Address,
        refresh_needed: &Arc<Notify>,
    ) -> Node {
        let config = &context.config;
        let stats = Arc::new(NodeStats::default());
        let runtimes = &config.worker_runtimes;
        let connections = config.connections_per_node.max(1);
        let signals: Vec<Arc<ConnectionSignal>> =
            (0..connections).map(|_| Arc::default()).collect();
        let loss_detector: Arc<LossDetector> = Arc::default();
        let breaker = config.breaker_clock.clone().map(|clock| {
            let (stats, refresh_needed) = (Arc::clone(&stats), Arc::clone(refresh_needed));
            let signals = signals.clone();
            Arc::new(NodeBreaker::new(clock, address.to_string(), stats, refresh_needed, signals))
        });
        let open_connection = |(index, signal): (usize, Arc<ConnectionSignal>)| {
            let (sender, queue) = mpsc::channel(QUEUE_MAX);
            let (ready, load): (Arc<AtomicBool>, Arc<ConnectionLoad>) = Default::default();
            let server_time_expiry: Arc<ServerTimeExpiry> = Arc::default();
            let stats = Arc::clone(&stats);
            let dialer = Dialer::new(
                Arc::clone(context),
                address.clone(),
                Arc::clone(&stats),
                Arc::clone(&signal),
                Arc::clone(&loss_detector),
            );
            let connection = Connection {
                dialer,
                queue,
                signal,
                ready: Arc::clone(&ready),
                load: Arc::clone(&load),
                server_time_expiry: Arc::clone(&server_time_expiry),
                meter: LoadMeter::default(),
                stats,
                refresh_needed: Arc::clone(refresh_needed),
                breaker: breaker.clone(),
            };
            match index.checked_rem(runtimes.len()) {
                None => drop(tokio::spawn(connection.run())),
                Some(worker) => drop(runtimes[worker].spawn(async move {
                    WORKER_INDEX.set(Some(worker));
                    connection.run().await;
                })),
            }
            ConnectionHandle { queue: sender, ready, load, server_time_expiry }
        };
        let connections = signals.into_iter().enumerate().map(open_connection).collect();
        Node {
            address,
            connections,
            next_connection: AtomicUsize::new(0),
            stats,
            refresh_needed: Arc::clone(refresh_needed),
            breaker,
            next_load_probe: AtomicU64::new(0),
            has_owned_slots: AtomicBool::new(false),
            info: ArcSwapOption::empty(),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether at least one connection to the node is open and accepts commands.
    pub(crate) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.ready.load(Ordering::Acquire))
    }

    /// Marks the node as an owner of hash slots. Returns true if it was not marked before.
    pub(crate) fn mark_as_owner(&self) -> bool {
        !self.has_owned_slots.swap(true, Ordering::AcqRel)
    }

    /// Returns the address of the node, its statistics, the state of its circuit breaker, and the
    /// result of the last INFO poll.
    pub(crate) fn report(&self) -> NodeReport {
        NodeReport {
            address: self.address.to_string(),
            stats: Arc::clone(&self.stats),
            breaker: self.breaker.as_ref().map(|breaker| breaker.state()),
            info: self.info.load_full(),
        }
    }

    /// Stores the result of an INFO poll; `None` if INFO could not be read.
    pub(crate) fn set_info(&self, info: Option<NodeInfo>) {
        self.info.store(info.map(Arc::new));
    }

    /// Queues the commands of one call on an open connection that can deliver the replies in time.
    /// If there is no such connection, rejects the commands immediately.
    pub(crate) fn enqueue(&self, mut batch: Batch) {
        let Some(command) = batch.first() else { return };
        let (now, deadline) = (command.queued_at, command.deadline);
        let first = WORKER_INDEX
            .get()
            .unwrap_or_else(|| self.next_connection.fetch_add(1, Ordering::Relaxed));
        let (mut overload, mut is_node_slow) = (None, false);
        for step in 0..self.connections.len() {
            let connection = &self.connections[first.wrapping_add(step) % self.connections.len()];
            if !connection.ready.load(Ordering::Acquire) {
                continue;
            }
            // If one connection is slow, another one without a measurement is no better: both lead
            // to the same node.
            let is_promising = !is_node_slow || connection.load.is_measured(now);
            if !is_promising || !connection.load.can_reply_by(now, deadline) {
                is_node_slow = true;
                if !self.claim_load_probe(now) {
                    overload = overload.or(Some((&self.stats.shed, SendErrorKind::Overload)));
                    continue;
                }
                // Otherwise the connection would reject it.
                batch.iter_mut().for_each(|command| command.deadline = Micros(u64::MAX));
            }
            let commands = batch.len();
            connection.load.add(commands);
            batch = match connection.queue.try_send(batch) {
                Ok(()) => return,
                Err(TrySendError::Full(batch)) => {
                    overload = Some((&self.stats.queue_full, SendErrorKind::QueueFull));
                    batch
                }
                Err(TrySendError::Closed(batch)) => batch,
            };
            connection.load.remove(commands);
        }
        let (counter, kind) = overload.unwrap_or_else(|| {
            self.refresh_needed.notify_one();
            (&self.stats.not_connected, SendErrorKind::NotConnected)
        });
        counter.add(batch.len() as u64);
        for command in batch {
            command.reject(kind);
        }
    }

    /// Returns whether to send a call regardless of the load estimate. Returns true at most once
    /// per [`LOAD_PROBE_INTERVAL`], so that the estimate recovers even if all other calls are
    /// rejected.
    fn claim_load_probe(&self, now: Micros) -> bool {
        let due = self.next_load_probe.load(Ordering::Relaxed);
        let next = now.saturating_add(LOAD_PROBE_INTERVAL).0;
        now.0 >= due
            && self
                .next_load_probe
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Queues a script call without waiting for its reply. Drops the call if the circuit breaker is
    /// open or no connection accepts the call.
    pub(crate) fn send_in_background(&self, call: ScriptCall) {
        if self.breaker.as_ref().is_none_or(|breaker| !breaker.is_open()) {
            self.enqueue(Batch::from_buf([PendingCommand::without_reply(call)]));
        } else {
            self.stats.breaker_rejected.add(1);
        }
    }

    /// Returns whether plain charges can be sent now. On a worker thread, the server's time must be
    /// known on the connection that the thread prefers. On any other thread, it must be known on
    /// every open connection.
    pub(crate) fn can_charge(&self) -> bool {
        let Some(breaker) = &self.breaker else { return false };
        let now = breaker.clock.now();
        let is_ready = |connection: &&ConnectionHandle| connection.ready.load(Ordering::Acquire);
        if let Some(worker) = WORKER_INDEX.get() {
            let preferred = self.connections.get(worker % self.connections.len().max(1));
            return preferred
                .filter(is_ready)
                .is_some_and(|connection| connection.server_time_expiry.is_known_at(now));
        }
        let mut ready = self.connections.iter().filter(is_ready).peekable();
        ready.peek().is_some()
            && ready.all(|connection| connection.server_time_expiry.is_known_at(now))
    }

    /// Queues one script call and returns its pending reply. If `asking` is true, sends ASKING
    /// before the call.
    pub(crate) fn send_one(&self, call: ScriptCall, asking: bool) -> PendingReply {
        let deadline = call.deadline;
        let (command, reply) = self.prepare(NodeCommand::Script(call), deadline, asking);
        self.enqueue(command.into_iter().collect());
        reply
    }

    /// Returns the command for a script call and its pending reply. If the circuit breaker rejects
    /// the call, the command is `None` and the reply is an error.
    pub(crate) fn prepare_script(
        &self,
        call: ScriptCall,
    ) -> (Option<PendingCommand>, PendingReply) {
        let deadline = call.deadline;
        self.prepare(NodeCommand::Script(call), deadline, false)
    }

    /// Returns the command for a call and its pending reply. If the circuit breaker rejects the
    /// call, the command is `None` and the reply is an error.
    pub(crate) fn prepare(
        &self,
        call: NodeCommand,
        deadline: Option<Instant>,
        asking: bool,
    ) -> (Option<PendingCommand>, PendingReply) {
        let (mut command, receiver) = PendingCommand::new(call, asking);
        let Some(breaker) = &self.breaker else {
            return (Some(command), PendingReply { receiver, tracker: None });
        };
        if breaker.is_open() {
            self.stats.breaker_rejected.add(1);
            command.reject(SendErrorKind::BreakerOpen);
            return (None, PendingReply { receiver, tracker: None });
        }
        let clock = &breaker.clock;
        command.queued_at = clock.now();
        if let Some(deadline) = deadline {
            command.deadline = clock.micros_at(deadline);
        }
        let tracker = Some(breaker.track(command.queued_at));
        (Some(command), PendingReply { receiver, tracker })
    }
}
