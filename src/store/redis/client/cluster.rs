//! The router of a Redis Cluster: slot → node, redirections followed per item, nodes side by side.
//!
//! ScriptCalls never wait for the slot table: it is swapped whole when a fresh one has been read, in the
//! background (`refresh`). Not here: connections (`connection`), what error replies mean (`fault`), a
//! key's slot (the item brings it).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::backoff::jittered;
use super::config::Address;
use super::dialer::Context;
use super::error_reply::Redirect;
use super::node::Node;
use super::node_breaker::Awaited;
use super::pending_command::{Batch, Reply};
use super::slot_table::SlotOwner;
use super::transport::{Replies, ScriptCall, ScriptCalls, SendError, SendErrorKind};
use crate::domain::Executed;
use crate::store::redis::keys::SLOTS;

/// An item is sent on so many times: a stale table costs one hop, a slot that moves meanwhile a
/// second; more means that the nodes disagree.
const HOPS_MAX: u32 = 3;
/// And waits so many times for keys that are under way, each time 2 to 4 ms.
const WAITS_MAX: u32 = 5;
const WAIT: Duration = Duration::from_millis(4);
/// What an item is answered with that nobody has answered.
const LOST: SendError = SendError { executed: Executed::Unknown, fault: SendErrorKind::Lost };
/// No node holds the slot.
const NOBODY: u16 = u16::MAX;

/// The nodes of a cluster, and which of them holds which slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) context: Arc<Context>,
    table: ArcSwap<Table>,
    /// Held while a table is made from the former one, never by an item's way.
    writing: Mutex<()>,
    /// Asks for a fresh table.
    pub(crate) trouble: Arc<Notify>,
    /// Who should be asked for it first: the last node that a MOVED named.
    hint: Mutex<Option<Address>>,
}

#[derive(Debug)]
struct Table {
    /// Per slot the index of its node.
    owner: Box<[u16]>,
    nodes: Vec<Arc<Node>>,
}

impl Cluster {
    /// A cluster of which nothing is known yet.
    pub(crate) fn new(context: Arc<Context>, trouble: Arc<Notify>) -> Cluster {
        let nobody = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
        let table = ArcSwap::from_pointee(Table { owner: nobody, nodes: Vec::new() });
        Cluster { context, table, writing: Mutex::new(()), trouble, hint: Mutex::new(None) }
    }

    /// What has not been answered by `until` is lost.
    pub(crate) async fn send(&self, items: ScriptCalls, until: Option<Instant>) -> Replies {
        let table = self.table.load_full();
        // Three nodes are the smallest cluster; a call that touches more pays an allocation.
        let mut parcels: SmallVec<[(u16, Batch); 3]> = SmallVec::new();
        let mut awaited: SmallVec<[(u16, Awaited); 1]> = SmallVec::new();
        for item in items {
            let owner = table.owner_of(item.slot);
            let Some(node) = table.nodes.get(usize::from(owner)) else {
                self.trouble.notify_one();
                awaited.push((owner, Awaited::refused(item, SendErrorKind::NotConnected)));
                continue;
            };
            let (ticket, receiver) = node.ticket(item, false);
            awaited.push((owner, receiver));
            let Some(ticket) = ticket else { continue };
            match parcels.iter_mut().find(|(held, _)| *held == owner) {
                Some((_, parcel)) => parcel.push(ticket),
                None => parcels.push((owner, Batch::from_buf([ticket]))),
            }
        }
        for (owner, parcel) in parcels {
            if let Some(node) = table.nodes.get(usize::from(owner)) {
                node.submit(parcel);
            }
        }
        let mut replies = Replies::with_capacity(awaited.len());
        let mut astray = Vec::new();
        let over = over(until);
        tokio::pin!(over);
        // A timer that has ended must not be asked again; from then on nothing is waited for.
        let mut ended = false;
        for (at, (owner, receiver)) in awaited.into_iter().enumerate() {
            let reply = tokio::select! {
                // What has arrived counts, whatever the time is.
                biased;
                reply = receiver.reply() => reply,
                () = std::future::ready(()), if ended => Reply::Failed(LOST),
                () = &mut over, if !ended => {
                    ended = true;
                    Reply::Failed(LOST)
                }
            };
            replies.push(match reply {
                Reply::Value(value) => Ok(value),
                Reply::Failed(error) => Err(error),
                Reply::Redirect(redirect, item) => {
                    if let Some(from) = table.nodes.get(usize::from(owner)) {
                        astray.push(async move {
                            (at, self.follow(Arc::clone(from), redirect, item).await)
                        });
                    }
                    // Until it has been followed to its end.
                    Err(LOST)
                }
            });
        }
        if !astray.is_empty() && !ended {
            let mut followed: FuturesUnordered<_> = astray.into_iter().collect();
            loop {
                tokio::select! {
                    biased;
                    next = followed.next() => match next {
                        Some((at, result)) => replies[at] = result,
                        None => break,
                    },
                    () = &mut over => break,
                }
            }
        }
        replies
    }

    pub(crate) fn post(&self, item: ScriptCall) {
        let table = self.table.load();
        let owner = table.owner_of(item.slot);
        match table.nodes.get(usize::from(owner)) {
            Some(node) => node.post(item),
            None => self.trouble.notify_one(),
        }
    }

    /// Sends an item that did not run to where it belongs.
    async fn follow(
        &self,
        mut node: Arc<Node>,
        mut redirect: Redirect,
        mut item: ScriptCall,
    ) -> Result<Value, SendError> {
        let mut asking = false;
        let (mut hops, mut waits) = (0, 0);
        loop {
            match redirect {
                Redirect::Moved(address) => {
                    hops += 1;
                    asking = false;
                    node = self.node_at(&address);
                    *self.hint.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
                    self.trouble.notify_one();
                }
                Redirect::Ask(address) => {
                    hops += 1;
                    asking = true;
                    node = self.node_at(&address);
                }
                Redirect::TryAgain => {
                    waits += 1;
                    tokio::time::sleep(jittered(WAIT)).await;
                }
            }
            if hops > HOPS_MAX || waits > WAITS_MAX {
                return moving();
            }
            match node.submit_one(item, asking).reply().await {
                Reply::Value(value) => return Ok(value),
                Reply::Failed(error) => return Err(error),
                Reply::Redirect(next, back) => {
                    redirect = next;
                    item = back;
                }
            }
        }
    }

    /// The node at an address; one that is new is opened and known from now on.
    fn node_at(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = self.table.load().node_at(address) {
            return node;
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let table = self.table.load();
        if let Some(node) = table.node_at(address) {
            return node;
        }
        let node = Arc::new(Node::open(&self.context, address.clone(), &self.trouble));
        let mut nodes = table.nodes.clone();
        nodes.push(Arc::clone(&node));
        self.table.store(Arc::new(Table { owner: table.owner.clone(), nodes }));
        node
    }

    /// Replaces the table. Nodes that stay keep their connections, the others' end once they are idle.
    /// Says whether anything changed.
    pub(crate) fn place(&self, holdings: &[SlotOwner]) -> bool {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let former = self.table.load();
        let mut owner = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
        let mut nodes = Vec::with_capacity(holdings.len());
        // Redis allows a thousand nodes; a u16 holds them.
        for (index, held) in (0..NOBODY).zip(holdings) {
            nodes.push(former.node_at(&held.master).unwrap_or_else(|| {
                Arc::new(Node::open(&self.context, held.master.clone(), &self.trouble))
            }));
            for (first, last) in &held.slots {
                owner[usize::from(*first)..=usize::from(*last)].fill(index);
            }
        }
        let table = Table { owner, nodes };
        let changed = !table.same(&former);
        if changed {
            self.table.store(Arc::new(table));
        }
        changed
    }

    /// The node that a MOVED named last, once.
    pub(crate) fn take_hint(&self) -> Option<Address> {
        self.hint.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.table.load().nodes.clone()
    }

    /// Whether every slot has a node, and every such node a connection.
    pub(crate) fn is_connected(&self) -> bool {
        let table = self.table.load();
        let mut checked = NOBODY;
        table.owner.iter().all(|owner| {
            *owner == checked && *owner != NOBODY || {
                checked = *owner;
                table.nodes.get(usize::from(checked)).is_some_and(|node| node.is_connected())
            }
        })
    }
}

impl Table {
    fn owner_of(&self, slot: Option<u16>) -> u16 {
        slot.and_then(|slot| self.owner.get(usize::from(slot)).copied()).unwrap_or(NOBODY)
    }

    fn node_at(&self, address: &Address) -> Option<Arc<Node>> {
        self.nodes.iter().find(|node| node.address() == address).cloned()
    }

    fn same(&self, other: &Table) -> bool {
        self.owner == other.owner
            && self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// Resolves at a moment, or never.
async fn over(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

fn moving() -> Result<Value, SendError> {
    Err(SendError { executed: Executed::No, fault: SendErrorKind::Moving })
}
