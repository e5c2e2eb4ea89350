//! What the Redis store asks of its connections: carry these items, answer each on its own.
//!
//! Not here: connections and topologies (they implement [`Transport`]), what the items say
//! (`args`), what the replies mean (`reply`).

use std::future::Future;
use std::time::Instant;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::domain::Executed;
use crate::store::redis::script::library::Script;

/// One script call, ready to be written.
///
/// A `redis::Cmd` holds the arguments in one buffer; a connection packs many of them into one write.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    /// The script it runs: what to load again where the server answers NOSCRIPT.
    pub script: &'static Script,
    /// The whole command: `EVALSHA <sha> <number of keys> <keys…> <arguments…>`.
    pub command: Cmd,
    /// The cluster slot of all its keys; `None` where the transport is no cluster (see
    /// [`Transport::is_cluster`]), so that standalone calls do not pay for the checksum.
    pub slot: Option<u16>,
}

/// The items of one round. One is the rule, so that the rule costs no allocation.
pub type ScriptCalls = SmallVec<[ScriptCall; 1]>;

/// One reply per item, in order.
pub type Replies = SmallVec<[Result<Value, SendError>; 1]>;

/// Why an item brought no reply, and whether it may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError {
    /// `No`: it did not run and may be sent again. `Unknown`: a consuming item must never be.
    pub executed: Executed,
    /// What happened; for counters and logs.
    pub fault: SendErrorKind,
}

/// What happened to an item that brought no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendErrorKind {
    /// No connection to the node.
    NotConnected,
    /// The queue of the node's connections was full.
    QueueFull,
    /// The node's breaker is open: it did not answer lately.
    Open,
    /// The connection was lost or dropped while the reply was outstanding.
    Lost,
    /// The cluster was moving: redirected too often, TRYAGAIN, CLUSTERDOWN, MASTERDOWN.
    Moving,
    /// The node is loading its data set, or is a replica (READONLY).
    NotMaster,
    /// The server is out of memory or refuses to write (OOM, MISCONF, NOREPLICAS).
    NotWritable,
    /// A slow script blocks the server (BUSY).
    Busy,
    /// The server refused us (NOAUTH, WRONGPASS, NOPERM).
    Denied,
    /// The script failed, or any other error reply.
    Script,
}

impl SendErrorKind {
    /// The word used in traces.
    pub const fn word(self) -> &'static str {
        match self {
            SendErrorKind::NotConnected => "not_connected",
            SendErrorKind::QueueFull => "queue_full",
            SendErrorKind::Open => "open",
            SendErrorKind::Lost => "lost",
            SendErrorKind::Moving => "moving",
            SendErrorKind::NotMaster => "not_master",
            SendErrorKind::NotWritable => "not_writable",
            SendErrorKind::Busy => "busy",
            SendErrorKind::Denied => "denied",
            SendErrorKind::Script => "script",
        }
    }
}

/// Carries items to the servers that hold their keys.
pub trait Transport: Send + Sync + 'static {
    /// Whether the keys of a call may lie on different nodes, so that calls are split by slot and
    /// every item names its slot.
    fn is_cluster(&self) -> bool;

    /// Sends the items, side by side per node (those of one node in the given order), and waits
    /// for every reply.
    ///
    /// An item whose outcome is unknown is never sent twice. If the future is dropped, items that
    /// were not written yet are not written any more.
    fn send(&self, items: ScriptCalls) -> impl Future<Output = Replies> + Send;

    /// The same until a moment: what has not been answered by then is
    /// [`Lost`](SendErrorKind::Lost), and nobody knows whether it ran; the replies that are there are
    /// there. `None` waits as long as it takes.
    fn send_until(
        &self,
        items: ScriptCalls,
        until: Option<Instant>,
    ) -> impl Future<Output = Replies> + Send {
        async move {
            let (count, sent) = (items.len(), self.send(items));
            let Some(until) = until else { return sent.await };
            let lost = SendError { executed: Executed::Unknown, fault: SendErrorKind::Lost };
            let in_time = tokio::time::timeout_at(until.into(), sent).await;
            in_time.unwrap_or_else(|_| (0..count).map(|_| Err(lost)).collect())
        }
    }

    /// Sends an item without waiting for its reply: at most once, in the background, dropped where
    /// the queue is full. For refunds, whose loss only makes a counter stricter for a while.
    fn post(&self, item: ScriptCall);
}
