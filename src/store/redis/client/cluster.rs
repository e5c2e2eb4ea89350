//! Redis Cluster topology: sends script calls in parallel to the nodes that hold their slots, and
//! follows redirections.
//!
//! Script calls never wait for the slot table, which is refreshed in the background
//! (`slot_refresh`). Not here: connections (`connection`), classifying error replies
//! (`error_reply`), computing the slot of a key (`store`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::backoff::with_jitter;
use super::config::Address;
use super::dialer::ClientContext;
use super::error_reply::Redirect;
use super::node::Node;
use super::pending_command::{Batch, CommandReply, PendingReply};
use super::slot_table::{SlotOwner, SlotTable};
use super::transport::{Replies, ScriptCall, ScriptCalls, SendError, SendErrorKind};

/// Maximum number of redirections followed per call. A stale slot table causes one, and a slot that
/// is migrated meanwhile causes a second. More than three mean that the nodes disagree.
const REDIRECTS_MAX: u32 = 3;
/// Maximum number of retries of a call after TRYAGAIN.
const TRYAGAIN_RETRIES_MAX: u32 = 5;
/// Maximum wait before a retry after TRYAGAIN. The wait is random, and at least half as long.
const TRYAGAIN_WAIT_MAX: Duration = Duration::from_millis(4);

/// Redis Cluster client with its table of nodes and their hash slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) context: Arc<ClientContext>,
    table: ArcSwap<SlotTable>,
    /// Lock that serializes replacements of `table`. Script calls never take it.
    update: Mutex<()>,
    /// Notified when the slot table may be stale.
    pub(crate) refresh_needed: Arc<Notify>,
    /// Node to query first at the next refresh: the target of the last MOVED.
    refresh_hint: Mutex<Option<Address>>,
}

impl Cluster {
    /// Creates a client whose slot table is empty until the first refresh.
    pub(crate) fn new(context: Arc<ClientContext>, refresh_needed: Arc<Notify>) -> Cluster {
        Cluster {
            context,
            table: ArcSwap::from_pointee(SlotTable::default()),
            update: Mutex::new(()),
            refresh_needed,
            refresh_hint: Mutex::new(None),
        }
    }

    /// Sends each script call to the node of its hash slot and waits for the replies. Calls that
    /// are not answered by the deadline fail as lost.
    pub(crate) async fn send(&self, calls: ScriptCalls, deadline: Option<Instant>) -> Replies {
        let table = self.table.load_full();
        // The smallest cluster has three nodes. A call to more nodes costs an allocation.
        let mut batches: SmallVec<[(u16, Batch); 3]> = SmallVec::new();
        let mut pending: SmallVec<[(u16, PendingReply); 1]> = SmallVec::new();
        for call in calls {
            let owner = table.owner(call.slot);
            let Some(node) = table.node(owner) else {
                self.refresh_needed.notify_one();
                let reply = PendingReply::rejected(call, SendErrorKind::NotConnected);
                pending.push((owner, reply));
                continue;
            };
            let (command, reply) = node.prepare(call, false);
            pending.push((owner, reply));
            let Some(command) = command else { continue };
            match batches.iter_mut().find(|(held, _)| *held == owner) {
                Some((_, batch)) => batch.push(command),
                None => batches.push((owner, Batch::from_buf([command]))),
            }
        }
        for (owner, batch) in batches {
            if let Some(node) = table.node(owner) {
                node.enqueue(batch);
            }
        }
        let mut replies = Replies::with_capacity(pending.len());
        let mut redirected = Vec::new();
        let timer = sleep_until_deadline(deadline);
        tokio::pin!(timer);
        // The timer must not be polled again after it fired.
        let mut expired = false;
        for (at, (owner, reply)) in pending.into_iter().enumerate() {
            let reply = tokio::select! {
                // Replies first: one that has arrived counts even after the deadline.
                biased;
                reply = reply.wait() => reply,
                () = std::future::ready(()), if expired => CommandReply::Failed(SendError::LOST),
                () = &mut timer, if !expired => {
                    expired = true;
                    CommandReply::Failed(SendError::LOST)
                }
            };
            replies.push(match reply {
                CommandReply::Value(value) => Ok(value),
                CommandReply::Failed(error) => Err(error),
                CommandReply::Redirect(redirect, call) => {
                    if let Some(from) = table.node(owner) {
                        let from = Arc::clone(from);
                        redirected.push(async move {
                            (at, self.follow_redirects(from, redirect, call).await)
                        });
                    }
                    // Placeholder, replaced below unless the deadline comes first.
                    Err(SendError::LOST)
                }
            });
        }
        if !redirected.is_empty() && !expired {
            let mut redirected: FuturesUnordered<_> = redirected.into_iter().collect();
            loop {
                tokio::select! {
                    biased;
                    next = redirected.next() => match next {
                        Some((at, result)) => replies[at] = result,
                        None => break,
                    },
                    () = &mut timer => break,
                }
            }
        }
        replies
    }

    /// Sends a script call and discards its reply. The call is dropped if no node is known to own
    /// its hash slot.
    pub(crate) fn send_in_background(&self, call: ScriptCall) {
        let table = self.table.load();
        match table.node(table.owner(call.slot)) {
            Some(node) => node.send_in_background(call),
            None => self.refresh_needed.notify_one(),
        }
    }

    /// Follows the redirections of a script call and returns its final reply. A redirected call has
    /// not run yet.
    async fn follow_redirects(
        &self,
        mut node: Arc<Node>,
        mut redirect: Redirect,
        mut call: ScriptCall,
    ) -> Result<Value, SendError> {
        let mut asking = false;
        let (mut redirects, mut retries) = (0, 0);
        loop {
            match redirect {
                Redirect::Moved(address) => {
                    redirects += 1;
                    asking = false;
                    node = self.node_at(&address);
                    *self.refresh_hint.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(address);
                    self.refresh_needed.notify_one();
                }
                Redirect::Ask(address) => {
                    redirects += 1;
                    asking = true;
                    node = self.node_at(&address);
                }
                Redirect::TryAgain => {
                    retries += 1;
                    tokio::time::sleep(with_jitter(TRYAGAIN_WAIT_MAX)).await;
                }
            }
            if redirects > REDIRECTS_MAX || retries > TRYAGAIN_RETRIES_MAX {
                return Err(SendError::not_executed(SendErrorKind::Moving));
            }
            match node.send_one(call, asking).wait().await {
                CommandReply::Value(value) => return Ok(value),
                CommandReply::Failed(error) => return Err(error),
                CommandReply::Redirect(next, returned) => {
                    redirect = next;
                    call = returned;
                }
            }
        }
    }

    /// Returns the node at an address. If the node is unknown, opens it and adds it to the slot
    /// table.
    fn node_at(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = self.table.load().node_at(address) {
            return node;
        }
        let _update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        let table = self.table.load();
        if let Some(node) = table.node_at(address) {
            return node;
        }
        let node = Arc::new(Node::open(&self.context, address.clone(), &self.refresh_needed));
        self.table.store(Arc::new(table.with_node(Arc::clone(&node))));
        node
    }

    /// Replaces the slot table, and returns whether anything changed. Nodes in both tables keep
    /// their connections; the connections of removed nodes are closed once they are idle.
    pub(crate) fn update_table(&self, owners: &[SlotOwner]) -> bool {
        let _update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        let former = self.table.load();
        let table = SlotTable::new(owners, |address| {
            former.node_at(address).unwrap_or_else(|| {
                Arc::new(Node::open(&self.context, address.clone(), &self.refresh_needed))
            })
        });
        let changed = !table.is_same(&former);
        if changed {
            self.table.store(Arc::new(table));
        }
        changed
    }

    /// Removes and returns the target address of the last MOVED, if there was one since the last
    /// refresh.
    pub(crate) fn take_refresh_hint(&self) -> Option<Address> {
        self.refresh_hint.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns all nodes in the slot table, including those that own no hash slots.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.table.load().nodes().to_vec()
    }

    /// Returns whether every hash slot belongs to a node with an open connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.table.load().is_connected()
    }
}

/// Sleeps until the deadline, or forever if there is none.
async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
