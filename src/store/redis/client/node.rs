//! One Redis node: its address, connections, circuit breaker, and statistics.
//!
//! Not here: what a connection does (`connection`), which node holds a key (`cluster`).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::config::Address;
use super::connection::{Connection, QUEUE_MAX};
use super::dialer::{ClientContext, Dialer};
use super::info::NodeInfo;
use super::node_breaker::NodeBreaker;
use super::node_stats::{NodeReport, NodeStats};
use super::pending_command::{Batch, PendingCommand, PendingReply};
use super::transport::{ScriptCall, SendErrorKind};

thread_local! {
    /// Index of this thread's runtime in `RedisConfig::worker_runtimes`; `None` on other threads.
    /// Set by the connection tasks that run on the thread.
    static WORKER_INDEX: Cell<Option<usize>> = const { Cell::new(None) };
}

/// One Redis server with its connections, which are opened in the background and closed when the
/// node is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    address: Address,
    connections: Box<[ConnectionHandle]>,
    /// Round-robin position among the connections, used by callers outside the worker runtimes.
    next_connection: AtomicUsize,
    stats: Arc<NodeStats>,
    refresh_needed: Arc<Notify>,
    breaker: Option<Arc<NodeBreaker>>,
    info: ArcSwapOption<NodeInfo>,
}

/// Handle through which callers queue commands for a connection task.
#[derive(Debug)]
struct ConnectionHandle {
    queue: mpsc::Sender<Batch>,
    connected: Arc<AtomicBool>,
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
        let open_connection = |index: usize| {
            let (sender, queue) = mpsc::channel(QUEUE_MAX);
            let connected = Arc::new(AtomicBool::new(false));
            let connection = Connection {
                dialer: Dialer::new(Arc::clone(context), address.clone(), Arc::clone(&stats)),
                queue,
                connected: Arc::clone(&connected),
                stats: Arc::clone(&stats),
                refresh_needed: Arc::clone(refresh_needed),
                clock: config.breaker_clock.clone(),
            };
            match index.checked_rem(runtimes.len()) {
                None => drop(tokio::spawn(connection.run())),
                Some(worker) => drop(runtimes[worker].spawn(async move {
                    WORKER_INDEX.set(Some(worker));
                    connection.run().await;
                })),
            }
            ConnectionHandle { queue: sender, connected }
        };
        let connections = (0..config.connections_per_node.max(1)).map(open_connection).collect();
        let breaker = config.breaker_clock.clone().map(|clock| {
            let (stats, refresh_needed) = (Arc::clone(&stats), Arc::clone(refresh_needed));
            Arc::new(NodeBreaker::new(clock, address.to_string(), stats, refresh_needed))
        });
        Node {
            address,
            connections,
            next_connection: AtomicUsize::new(0),
            stats,
            refresh_needed: Arc::clone(refresh_needed),
            breaker,
            info: ArcSwapOption::empty(),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether at least one connection to the node is open.
    pub(crate) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.connected.load(Ordering::Acquire))
    }

    /// Returns the address of the node, its statistics, the state of its breaker, and the result of
    /// the last INFO poll.
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

    /// Queues the commands of one call on an open connection, or rejects them immediately if no
    /// connection is open or all queues are full.
    pub(crate) fn enqueue(&self, mut batch: Batch) {
        if batch.is_empty() {
            return;
        }
        let first = WORKER_INDEX
            .get()
            .unwrap_or_else(|| self.next_connection.fetch_add(1, Ordering::Relaxed));
        let mut queue_full = false;
        for step in 0..self.connections.len() {
            let connection = &self.connections[first.wrapping_add(step) % self.connections.len()];
            if !connection.connected.load(Ordering::Acquire) {
                continue;
            }
            batch = match connection.queue.try_send(batch) {
                Ok(()) => return,
                Err(TrySendError::Full(batch)) => {
                    queue_full = true;
                    batch
                }
                Err(TrySendError::Closed(batch)) => batch,
            };
        }
        let (counter, kind) = if queue_full {
            (&self.stats.queue_full, SendErrorKind::QueueFull)
        } else {
            self.refresh_needed.notify_one();
            (&self.stats.not_connected, SendErrorKind::NotConnected)
        };
        counter.add(batch.len() as u64);
        for command in batch {
            command.reject(kind);
        }
    }

    /// Queues a script call whose reply is discarded. The call is dropped unless the circuit
    /// breaker is fully closed, because a call without a reply cannot serve as a probe.
    pub(crate) fn send_in_background(&self, call: ScriptCall) {
        if self.breaker.as_ref().is_none_or(|breaker| breaker.is_fully_closed()) {
            self.enqueue(Batch::from_buf([PendingCommand::without_reply(call)]));
        } else {
            self.stats.breaker_rejected.add(1);
        }
    }

    /// Queues one script call and returns its pending reply. If `asking`, sends ASKING before it.
    pub(crate) fn send_one(&self, call: ScriptCall, asking: bool) -> PendingReply {
        let (command, reply) = self.prepare(call, asking);
        self.enqueue(command.into_iter().collect());
        reply
    }

    /// Returns the command for a script call and its pending reply. If the circuit breaker rejects
    /// the call, the command is `None` and the reply is an error.
    pub(crate) fn prepare(
        &self,
        call: ScriptCall,
        asking: bool,
    ) -> (Option<PendingCommand>, PendingReply) {
        let (command, receiver) = PendingCommand::new(call, asking);
        let Some(breaker) = &self.breaker else {
            return (Some(command), PendingReply { receiver, tracker: None });
        };
        let tracker = breaker.admit();
        let command = if tracker.is_some() {
            Some(command)
        } else {
            self.stats.breaker_rejected.add(1);
            command.reject(SendErrorKind::BreakerOpen);
            None
        };
        (command, PendingReply { receiver, tracker })
    }
}
