//! A node: one server's address, its connections, its counters.
//!
//! Not here: what a connection does (`connection`), which node a key lies on (`cluster`).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::config::Address;
use super::connection::{Connection, QUEUE_MAX};
use super::dialer::{Context, Dialer};
use super::info::NodeInfo;
use super::node_breaker::{Awaited, NodeBreaker};
use super::node_stats::{NodeReport, NodeStats};
use super::pending_command::{Batch, PendingCommand};
use super::transport::{ScriptCall, SendErrorKind};

thread_local! {
    /// Which of the homes this thread is; set by the connections that live here.
    static HOME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// One server. Its connections dial in the background from the moment it is opened, and end when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Node {
    address: Address,
    connections: Box<[ConnectionLoss]>,
    /// Whose turn it is, among callers who are at home nowhere.
    turn: AtomicUsize,
    counters: Arc<NodeStats>,
    trouble: Arc<Notify>,
    breaker: Option<Arc<NodeBreaker>>,
    vitals: ArcSwapOption<NodeInfo>,
}

/// The callers' end of a connection.
#[derive(Debug)]
struct ConnectionLoss {
    queue: mpsc::Sender<Batch>,
    connected: Arc<AtomicBool>,
}

impl Node {
    /// Opens the node's connections, on their homes or else the present runtime. `trouble` is told whenever a connection loses its
    /// connection or cannot get one.
    pub(crate) fn open(context: &Arc<Context>, address: Address, trouble: &Arc<Notify>) -> Node {
        let counters = Arc::new(NodeStats::default());
        let homes = &context.config.homes;
        let connection = |at: usize| {
            let (queue, receiver) = mpsc::channel(QUEUE_MAX);
            let connected = Arc::new(AtomicBool::new(false));
            let connection = Connection {
                dialer: Dialer::new(Arc::clone(context), address.clone(), Arc::clone(&counters)),
                queue: receiver,
                connected: Arc::clone(&connected),
                counters: Arc::clone(&counters),
                trouble: Arc::clone(trouble),
                now: context.config.breaker.clone(),
            };
            match at.checked_rem(homes.len()) {
                None => drop(tokio::spawn(connection.run())),
                Some(home) => drop(homes[home].spawn(async move {
                    HOME.set(Some(home));
                    connection.run().await;
                })),
            }
            ConnectionLoss { queue, connected }
        };
        let connections = (0..context.config.connections.max(1)).map(connection).collect();
        let trouble = Arc::clone(trouble);
        let breaker = context.config.breaker.clone().map(|now| {
            let (counters, trouble) = (Arc::clone(&counters), Arc::clone(&trouble));
            Arc::new(NodeBreaker::new(now, address.to_string(), counters, trouble))
        });
        let (turn, vitals) = (AtomicUsize::new(0), ArcSwapOption::empty());
        Node { address, connections, turn, counters, trouble, breaker, vitals }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Whether any connection is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.connected.load(Ordering::Acquire))
    }

    /// The node's counters, live.
    pub(crate) fn report(&self) -> NodeReport {
        NodeReport {
            address: self.address.to_string(),
            counters: Arc::clone(&self.counters),
            breaker: self.breaker.as_ref().map(|breaker| breaker.state()),
            vitals: self.vitals.load_full(),
        }
    }

    /// What the server said of itself last.
    pub(crate) fn say(&self, vitals: Option<NodeInfo>) {
        self.vitals.store(vitals.map(Arc::new));
    }

    /// Queues what one call asks of this node, or refuses it at once.
    pub(crate) fn submit(&self, mut parcel: Batch) {
        if parcel.is_empty() {
            return;
        }
        let first = HOME.get().unwrap_or_else(|| self.turn.fetch_add(1, Ordering::Relaxed));
        let mut fault = SendErrorKind::NotConnected;
        for step in 0..self.connections.len() {
            let connection = &self.connections[first.wrapping_add(step) % self.connections.len()];
            if !connection.connected.load(Ordering::Acquire) {
                continue;
            }
            parcel = match connection.queue.try_send(parcel) {
                Ok(()) => return,
                Err(TrySendError::Full(parcel)) => {
                    fault = SendErrorKind::QueueFull;
                    parcel
                }
                Err(TrySendError::Closed(parcel)) => parcel,
            };
        }
        let counter = match fault {
            SendErrorKind::QueueFull => &self.counters.queue_full,
            _ => &self.counters.not_connected,
        };
        counter.add(parcel.len() as u64);
        if fault == SendErrorKind::NotConnected {
            self.trouble.notify_one();
        }
        for ticket in parcel {
            ticket.refuse(fault);
        }
    }

    /// Queues an item that nobody waits for, unless the breaker wants to know of its every call.
    pub(crate) fn post(&self, item: ScriptCall) {
        if self.breaker.as_ref().is_none_or(|breaker| breaker.is_open()) {
            self.submit(Batch::from_buf([PendingCommand::posted(item)]));
        } else {
            self.counters.rejected.add(1);
        }
    }

    /// Queues one item.
    pub(crate) fn submit_one(&self, item: ScriptCall, asking: bool) -> Awaited {
        let (ticket, awaited) = self.ticket(item, asking);
        if let Some(ticket) = ticket {
            self.submit(Batch::from_buf([ticket]));
        }
        awaited
    }

    /// A ticket for an item, and its reply; no ticket where the breaker refuses it.
    pub(crate) fn ticket(
        &self,
        item: ScriptCall,
        asking: bool,
    ) -> (Option<PendingCommand>, Awaited) {
        let (ticket, receiver) = PendingCommand::new(item, asking);
        let Some(breaker) = &self.breaker else {
            return (Some(ticket), Awaited { receiver, watch: None });
        };
        let watch = breaker.admit();
        let ticket = if watch.is_some() {
            Some(ticket)
        } else {
            self.counters.rejected.add(1);
            ticket.refuse(SendErrorKind::Open);
            None
        };
        (ticket, Awaited { receiver, watch })
    }
}
