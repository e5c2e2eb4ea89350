//! A node's breaker in use: asked before each item, told what became of it.
//!
//! Not here: when it trips (`breaker`), the connections.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::backoff::chance;
use super::circuit_breaker::{CircuitBreaker, Failure, Pass, State};
use super::config::Monotonic;
use super::node_stats::NodeStats;
use super::pending_command::{PendingCommand, Reply};
use super::transport::{ScriptCall, SendError, SendErrorKind};
use crate::domain::{Executed, Micros};
use crate::store::current_trace;

/// A caller who goes away sooner than this did not wait in vain: it was cancelled. A healthy node
/// answers within 1 ms, and a call's budget is 6.
const IN_VAIN: Micros = Micros(3_000);

/// A breaker with its time and its counters.
pub(crate) struct NodeBreaker {
    now: Monotonic,
    breaker: Mutex<CircuitBreaker>,
    /// The breaker is wide open: nothing has to be asked, and answers are only counted.
    open: AtomicBool,
    epoch: AtomicU32,
    /// Answers that the breaker was not told of yet.
    answered: AtomicU64,
    address: String,
    counters: Arc<NodeStats>,
    trouble: Arc<Notify>,
}

impl std::fmt::Debug for NodeBreaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBreaker").field("address", &self.address).finish_non_exhaustive()
    }
}

/// An item on its way past a breaker: if it is dropped unanswered, its caller waited in vain.
#[derive(Debug)]
pub(crate) struct Watch {
    guard: Arc<NodeBreaker>,
    pass: Pass,
    sent: Micros,
    told: bool,
}

impl NodeBreaker {
    pub(crate) fn new(
        now: Monotonic,
        address: String,
        counters: Arc<NodeStats>,
        trouble: Arc<Notify>,
    ) -> NodeBreaker {
        NodeBreaker {
            now,
            breaker: Mutex::default(),
            open: AtomicBool::new(true),
            epoch: AtomicU32::new(0),
            answered: AtomicU64::new(0),
            address,
            counters,
            trouble,
        }
    }

    /// Leave to send an item; `None` while the breaker is open.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Watch> {
        let sent = self.now.now();
        let pass = if self.open.load(Ordering::Relaxed) {
            Pass(self.epoch.load(Ordering::Relaxed))
        } else {
            let mut breaker = self.lock();
            let pass = breaker.admit(sent, chance());
            self.publish(&breaker);
            pass?
        };
        Some(Watch { guard: Arc::clone(self), pass, sent, told: false })
    }

    /// What the breaker does now.
    pub(crate) fn state(&self) -> State {
        self.lock().state()
    }

    /// Everything is sent: for items that nobody waits for, which are no probes.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    fn answered(&self, pass: Pass) {
        if self.open.load(Ordering::Relaxed) {
            self.answered.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut breaker = self.lock();
        breaker.answered(pass, 1, self.now.now());
        if breaker.state() == State::Closed && self.counters.open_now.get() > 0 {
            self.counters.open_now.sub(1);
            tracing::info!(node = self.address, "the breaker flows: the node answers again");
        }
        self.publish(&breaker);
    }

    fn failed(&self, pass: Pass, failure: Failure) {
        let mut breaker = self.lock();
        let now = self.now.now();
        let flowed = breaker.state() == State::Closed;
        let answered = self.answered.swap(0, Ordering::Relaxed);
        let open = breaker.pass();
        breaker.answered(open, answered, now);
        breaker.failed(pass, failure, now, chance());
        if flowed && breaker.state() == State::Open {
            self.counters.opened.add(1);
            if self.counters.open_now.get() == 0 {
                self.counters.open_now.add(1);
            }
            tracing::warn!(node = self.address, ?failure, "the circuit breaker opened");
            self.trouble.notify_one();
        }
        self.publish(&breaker);
    }

    /// What the fast way looks at. Called with the lock held.
    fn publish(&self, breaker: &CircuitBreaker) {
        self.epoch.store(breaker.pass().0, Ordering::Relaxed);
        self.open.store(breaker.is_wide_open(), Ordering::Relaxed);
    }

    /// Nothing under the lock can panic half way through a change.
    fn lock(&self) -> MutexGuard<'_, CircuitBreaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    fn so_far(&self) -> Micros {
        self.guard.now.now().saturating_sub(self.sent)
    }

    /// How long it has been under way; noted.
    fn waited(&self) -> Micros {
        let waited = self.so_far();
        self.guard.counters.waits.note(waited.0);
        waited
    }

    fn tell(mut self, reply: &Reply) {
        self.told = true;
        let Reply::Failed(SendError { fault, .. }) = reply else {
            let waited = self.waited();
            current_trace::note(|trace| trace.asked(&self.guard.address, waited, None));
            return self.guard.answered(self.pass);
        };
        // Whoever traces wants to know of calls that were not sent, too.
        current_trace::note(|trace| {
            trace.asked(&self.guard.address, self.so_far(), Some(fault.word()))
        });
        match fault {
            // Nobody waited, and nothing was learned of the node.
            SendErrorKind::NotConnected | SendErrorKind::QueueFull | SendErrorKind::Open => return,
            SendErrorKind::Lost => self.guard.failed(self.pass, Failure::Unanswered),
            SendErrorKind::Moving | SendErrorKind::NotMaster | SendErrorKind::Busy => {
                self.guard.failed(self.pass, Failure::Refused);
            }
            // The node answers; a full one still tells refusals from passes.
            SendErrorKind::NotWritable | SendErrorKind::Denied | SendErrorKind::Script => {
                self.guard.answered(self.pass);
            }
        }
        self.waited();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A caller who gives up has waited too: without those the slowest would not be seen.
        if self.told {
            return;
        }
        let waited = self.waited();
        current_trace::note(|trace| trace.asked(&self.guard.address, waited, Some("unheard")));
        if waited >= IN_VAIN {
            self.guard.failed(self.pass, Failure::Unanswered);
        }
    }
}

/// A reply that is waited for.
#[derive(Debug)]
pub(crate) struct Awaited {
    pub(crate) receiver: oneshot::Receiver<Reply>,
    /// `None` where the node has no breaker, or was not asked.
    pub(crate) watch: Option<Watch>,
}

impl Awaited {
    /// The reply of an item that no node is asked for.
    pub(crate) fn refused(item: ScriptCall, fault: SendErrorKind) -> Awaited {
        let (ticket, receiver) = PendingCommand::new(item, false);
        ticket.refuse(fault);
        Awaited { receiver, watch: None }
    }

    /// Waits for the reply. A ticket that was dropped unanswered had been written.
    pub(crate) async fn reply(self) -> Reply {
        let Awaited { receiver, watch } = self;
        let lost = SendError { executed: Executed::Unknown, fault: SendErrorKind::Lost };
        let reply = receiver.await.unwrap_or(Reply::Failed(lost));
        if let Some(watch) = watch {
            watch.tell(&reply);
        }
        reply
    }
}
