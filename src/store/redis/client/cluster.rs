//! Redis Cluster client: queues each script call for the node that owns its hash slot, and follows
//! redirects.
//!
//! Script calls never wait for the slot table, which is refreshed in the background
//! (`slot_refresh`). Not here: connections (`connection`), classifying error replies
//! (`error_reply`), computing the slot of a key (`keys`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::OptionFuture;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::client_context::ClientContext;
use super::config::Address;
use super::error_reply::Redirect;
use super::loss_detector::NEW_MASTER;
use super::node::Node;
use super::pending_command::Batch;
use super::reply_slot::{CallReply, CommandReply};
use super::send_error::SendError;
use super::slot_table::{Membership, SlotOwner, SlotTable};
use super::transport::{NodeRequests, PendingCall, PendingCalls};
use crate::domain::{FailureKind, Lock};
use crate::store::redis::script::library::ScriptCall;

/// Maximum number of redirects that are followed per call. A stale slot table causes one redirect,
/// and a simultaneous migration of the slot causes a second. More than three redirects mean that
/// the nodes disagree about the owner of the slot.
const REDIRECTS_MAX: u32 = 3;
/// Maximum number of retries per call after TRYAGAIN. A node replies TRYAGAIN while only some of
/// the call's keys have moved to the new node. That can last until all keys of the slot have moved,
/// so if one retry is not enough, the call is decided without Redis.
const RETRIES_MAX: u32 = 1;
/// Time to wait before the retry after a TRYAGAIN reply. MIGRATE moves a batch of keys in about
/// this time.
const RETRY_WAIT: Duration = Duration::from_millis(1);
/// Maximum number of unlisted nodes to which redirects are followed between two updates of the slot
/// table. A node is unlisted if the slot table from the cluster does not contain its address. A
/// reshard involves one or two such nodes.
const REDIRECT_TARGETS_MAX: usize = 16;

/// Redis Cluster client with a table of the nodes and their hash slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) context: Arc<ClientContext>,
    pub(super) table: ArcSwap<SlotTable>,
    /// Nodes that belong to the cluster. The mutex serializes replacements of the slot table. Script
    /// calls lock it only to check that the target of a redirect belongs to the cluster.
    origin: Lock<TableOrigin>,
    /// Notification that the slot table may be stale and must be refreshed.
    pub(crate) refresh_needed: Arc<Notify>,
    /// Node to query first at the next refresh of the slot table: the target of the last MOVED
    /// redirect.
    refresh_hint: Lock<Option<Address>>,
    /// Number of MOVED, ASK, and TRYAGAIN replies to script calls whose callers waited for a reply.
    redirects: AtomicU64,
}

/// Origin of the slot table: the cluster that returned the table, and the nodes that redirects
/// added to it.
#[derive(Debug, Default)]
struct TableOrigin {
    /// Node ids and config epoch of the cluster when the slot table was read; `None` if unknown.
    membership: Option<Membership>,
    /// Addresses that redirects have pointed to since the last update of the slot table, and that
    /// were missing from the table that the cluster returned.
    redirect_targets: Vec<Address>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableUpdate {
    /// The slot table was replaced.
    Replaced,
    /// The node returned the same slot table as the current one.
    Unchanged,
    /// The node returned a slot table with a lower config epoch, which was ignored.
    Older,
    /// The node that returned the slot table belongs to a different cluster, so the table was
    /// ignored.
    OtherCluster,
}

impl Cluster {
    /// Creates a client with an empty slot table, which the first refresh fills.
    pub(crate) fn new(context: Arc<ClientContext>, refresh_needed: Arc<Notify>) -> Cluster {
        Cluster {
            context,
            table: ArcSwap::from_pointee(SlotTable::default()),
            origin: Lock::default(),
            refresh_needed,
            refresh_hint: Lock::new(None),
            redirects: AtomicU64::new(0),
        }
    }

    /// Queues each request for the node that owns its hash slot, those of one node in one batch.
    pub(crate) fn submit(self: &Arc<Self>, calls: NodeRequests) -> PendingCalls {
        let table = self.table.load();
        // The smallest cluster has three nodes. A call to more nodes costs an allocation.
        let mut batches: SmallVec<[(u16, Batch); 3]> = SmallVec::new();
        let mut pending = PendingCalls::new();
        for call in calls {
            let owner = table.owner(call.slot());
            let Some(node) = table.node(owner) else {
                self.refresh_needed.notify_one();
                let is_known = !table.nodes().is_empty();
                let kind = if is_known { FailureKind::NoNode } else { FailureKind::NotConnected };
                let error = SendError::not_executed(kind);
                pending.push(PendingCall::ready(Err(error)));
                continue;
            };
            let (command, reply) = node.prepare(call, false);
            pending.push(PendingCall::new(reply, Some(Arc::clone(self))));
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
        pending
    }

    /// Sends a script call without waiting for its reply. Drops the call if no known node owns its
    /// hash slot.
    pub(crate) fn send_in_background(&self, call: ScriptCall) {
        let table = self.table.load();
        match table.node(table.owner(call.slot)) {
            Some(node) => node.send_in_background(call),
            None => self.refresh_needed.notify_one(),
        }
    }

    /// Follows the redirects of a script call and returns its final reply. A redirected call has
    /// not been executed yet, so it is safe to resend.
    pub(crate) async fn follow_redirects(
        &self,
        mut redirect: Redirect,
        mut call: ScriptCall,
    ) -> Result<CallReply, SendError> {
        const RECONFIGURING: SendError = SendError::not_executed(FailureKind::Moving);
        let table = self.table.load();
        let owner = table.node(table.owner(call.slot)).ok_or(RECONFIGURING)?;
        let (mut node, mut asking) = (Arc::clone(owner), false);
        drop(table);
        let deadline = call.deadline.map(Instant::from);
        let (mut redirects, mut retries) = (0, 0);
        loop {
            self.redirects.fetch_add(1, Ordering::Relaxed);
            match redirect {
                Redirect::Moved(address) => {
                    redirects += 1;
                    asking = false;
                    node = self.redirect_target(&address).ok_or(RECONFIGURING)?;
                    *self.refresh_hint.lock() = Some(address);
                    self.refresh_needed.notify_one();
                }
                Redirect::Ask(address) => {
                    redirects += 1;
                    asking = true;
                    node = self.redirect_target(&address).ok_or(RECONFIGURING)?;
                }
                Redirect::TryAgain if retries >= RETRIES_MAX => return Err(RECONFIGURING),
                Redirect::TryAgain => {
                    retries += 1;
                    tokio::select! {
                        biased;
                        // The call did not run, so it must not be reported as lost.
                        Some(()) = OptionFuture::from(deadline.map(sleep_until)) => {
                            return Err(RECONFIGURING);
                        }
                        () = tokio::time::sleep(RETRY_WAIT) => {}
                    }
                }
            }
            if redirects > REDIRECTS_MAX {
                return Err(RECONFIGURING);
            }
            match node.send_one(call, asking).await {
                CommandReply::Final(reply) => return reply,
                CommandReply::Redirect(next, returned) => {
                    redirect = next;
                    call = *returned;
                }
            }
        }
    }

    /// Returns the node that a redirect points to. If the slot table does not contain the node,
    /// opens connections to it and adds it to the table. Returns `None` if the cluster does not
    /// list the address and, since the last update, redirects have already pointed to
    /// [`REDIRECT_TARGETS_MAX`] other unlisted addresses.
    fn redirect_target(&self, address: &Address) -> Option<Arc<Node>> {
        let mut origin = self.origin.lock();
        let table = self.table.load();
        if let Some(node) = table.listed_node(address) {
            return Some(node);
        }
        if !origin.redirect_targets.contains(address) {
            if origin.redirect_targets.len() >= REDIRECT_TARGETS_MAX {
                return None;
            }
            origin.redirect_targets.push(address.clone());
        }
        if let Some(node) = table.node_at(address) {
            return Some(node);
        }
        let node = self.open_node(address, None);
        self.record_loss_if_new_owner(&node, None, &table);
        self.table.store(Arc::new(table.with_node(Arc::clone(&node))));
        Some(node)
    }

    fn open_node(&self, address: &Address, slot: Option<u16>) -> Arc<Node> {
        Arc::new(Node::open(&self.context, address.clone(), &self.refresh_needed, slot))
    }

    /// Records a loss of counters if `node` owns hash slots for the first time since it was added
    /// to the slot table. The node may be a promoted replica that lacks the former master's last
    /// charges. Does nothing if `former` is the empty table at startup.
    ///
    /// Call this only for nodes that own hash slots or that a redirect points to, because other
    /// nodes hold no counters. Shortly after a failover, some nodes still list the former master
    /// without hash slots.
    fn record_loss_if_new_owner(&self, node: &Node, slot: Option<u16>, former: &SlotTable) {
        let is_new = node.mark_as_owner(slot) || former.node_at(node.address()).is_none();
        if is_new && !former.nodes().is_empty() {
            self.context.record_loss(node.address(), NEW_MASTER);
        }
    }

    /// Replaces the slot table with the one that a node returned. Ignores a table that is older,
    /// and ignores a table from another cluster unless `adopt` is true. Nodes that are in both
    /// tables keep their connections. Connections to removed nodes are closed once they are idle.
    ///
    /// Also keeps the nodes that were added by redirects since the last update. Otherwise, if a
    /// MOVED pointed to an address where nothing listens, every update would be followed by another
    /// attempt to connect to it, without backoff.
    pub(crate) fn update_table(
        &self,
        owners: &[SlotOwner],
        membership: Option<Membership>,
        adopt: bool,
    ) -> TableUpdate {
        let mut origin = self.origin.lock();
        let former = self.table.load();
        if let (Some(present), Some(offered)) = (&origin.membership, &membership) {
            let is_other_cluster = offered.is_other_cluster(present);
            if is_other_cluster && !adopt {
                return TableUpdate::OtherCluster;
            }
            if !is_other_cluster && offered.config_epoch < present.config_epoch {
                return TableUpdate::Older;
            }
        }
        let node_at = |address: &Address, slot| {
            former.node_at(address).unwrap_or_else(|| self.open_node(address, slot))
        };
        let mut table = SlotTable::new(owners, node_at);
        for owner in owners {
            if let (Some((slot, _)), Some(node)) =
                (owner.slots.first(), table.node_at(&owner.master))
            {
                self.record_loss_if_new_owner(&node, Some(*slot), &former);
            }
        }
        for address in std::mem::take(&mut origin.redirect_targets) {
            if table.node_at(&address).is_none() {
                table = table.with_node(node_at(&address, None));
            }
        }
        if membership.is_some() {
            origin.membership = membership;
        }
        if table.is_same(&former) {
            return TableUpdate::Unchanged;
        }
        let unowned = table.unowned_slots();
        if !unowned.is_empty() && unowned != former.unowned_slots() {
            log_unowned_slots(&unowned);
        }
        self.table.store(Arc::new(table));
        TableUpdate::Replaced
    }

    /// Returns whether `membership`, as reported by a node, belongs to a different cluster than the
    /// slot table.
    pub(crate) fn is_other_cluster(&self, membership: &Membership) -> bool {
        let origin = self.origin.lock();
        origin.membership.as_ref().is_some_and(|present| membership.is_other_cluster(present))
    }

    /// Removes and returns the target address of the last MOVED redirect since the last refresh,
    /// or `None` if there was none.
    pub(crate) fn take_refresh_hint(&self) -> Option<Address> {
        self.refresh_hint.lock().take()
    }

    /// Returns all nodes in the slot table, including those that own no hash slots.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.table.load().nodes().to_vec()
    }

    /// Returns the node that owns a hash slot, or `None` if no known node owns it.
    #[cfg(feature = "server")]
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let table = self.table.load();
        table.node(table.owner(Some(slot))).cloned()
    }

    /// Returns the index of the node that owns a hash slot, or `None` if no known node owns it.
    pub(crate) fn node_of(&self, slot: u16) -> Option<u16> {
        let table = self.table.load();
        let owner = table.owner(Some(slot));
        table.node(owner).map(|_| owner)
    }

    /// Returns the number of MOVED, ASK, and TRYAGAIN replies to script calls whose callers waited
    /// for a reply.
    pub(crate) fn redirects(&self) -> u64 {
        self.redirects.load(Ordering::Relaxed)
    }

    /// Returns whether a node has returned a slot table, and a connection is open to every node that
    /// owns hash slots.
    pub(crate) fn is_connected(&self) -> bool {
        self.owners_are(Node::is_connected)
    }

    /// Returns whether a node has returned a slot table, and a connection is open to a node that owns
    /// hash slots. It is known of every other owner that it cannot be reached.
    pub(crate) fn is_reached(&self) -> bool {
        self.table.load().owning_nodes().any(|node| node.is_connected())
            && self.owners_are(|node| node.is_connected() || node.is_unreachable())
    }

    fn owners_are(&self, condition: impl Fn(&Node) -> bool) -> bool {
        let table = self.table.load();
        !table.nodes().is_empty() && table.owning_nodes().all(|node| condition(node))
    }
}

/// Maximum number of ranges of hash slots that a log line lists.
const LISTED_RANGES_MAX: usize = 8;

fn log_unowned_slots(unowned: &[(u16, u16)]) {
    let count: u32 = unowned.iter().map(|(first, last)| u32::from(last - first) + 1).sum();
    let range = |(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let mut listed: Vec<String> = unowned.iter().take(LISTED_RANGES_MAX).map(range).collect();
    if unowned.len() > LISTED_RANGES_MAX {
        listed.push("…".to_owned());
    }
    let (slots, advice) = (listed.join(","), "assign them, or run redis-cli --cluster fix");
    tracing::warn!(count, slots, advice, "hash slots have no node");
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::store::redis::client::config::{RedisConfig, TopologyConfig};
    use crate::store::redis::client::slot_table::parse_nodes;

    fn address(port: u16) -> Address {
        Address::Tcp("127.0.0.1".to_owned(), port)
    }

    /// Returns a client of a cluster in which no node accepts connections.
    fn cluster() -> Cluster {
        let topology = TopologyConfig::Cluster;
        let config =
            RedisConfig { topology, addresses: vec![address(1)], ..RedisConfig::default() };
        let context = ClientContext::new(config, Vec::new()).unwrap();
        Cluster::new(Arc::new(context), Arc::default())
    }

    /// Replaces the slot table. `owners` lists the port and the slot ranges of each node. Returns
    /// the number of counter losses recorded so far.
    fn update(cluster: &Cluster, owners: &[(u16, &[(u16, u16)])]) -> u64 {
        let owners: Vec<SlotOwner> = owners
            .iter()
            .map(|(port, slots)| SlotOwner { master: address(*port), slots: slots.to_vec() })
            .collect();
        cluster.update_table(&owners, None, false);
        cluster.context.losses.load(Ordering::Relaxed)
    }

    const ALL_SLOTS: &[(u16, u16)] = &[(0, 16_383)];
    const LOWER_SLOTS: &[(u16, u16)] = &[(0, 8_000)];
    const UPPER_SLOTS: &[(u16, u16)] = &[(8_001, 16_383)];

    #[tokio::test]
    async fn a_new_owner_of_hash_slots_counts_as_a_loss_and_a_master_without_them_does_not() {
        let cluster = cluster();
        assert_eq!(update(&cluster, &[(1, ALL_SLOTS)]), 0, "the first table");
        assert_eq!(update(&cluster, &[(2, ALL_SLOTS)]), 1, "a failover");
        assert_eq!(
            update(&cluster, &[(2, ALL_SLOTS), (1, &[])]),
            1,
            "a node still lists the former"
        );
        assert_eq!(update(&cluster, &[(2, ALL_SLOTS)]), 1);
        assert_eq!(update(&cluster, &[(2, ALL_SLOTS), (1, &[])]), 1);
        assert_eq!(update(&cluster, &[(1, ALL_SLOTS)]), 2, "a failover back");
        assert_eq!(
            update(&cluster, &[(1, LOWER_SLOTS), (3, UPPER_SLOTS)]),
            3,
            "it may be a failover"
        );
        assert_eq!(
            update(&cluster, &[(1, &[]), (3, ALL_SLOTS)]),
            3,
            "slots move with their counters"
        );
        assert_eq!(update(&cluster, &[(1, LOWER_SLOTS), (3, UPPER_SLOTS)]), 3, "and back");
    }

    fn membership(node_id: &str, epoch: u64) -> Option<Membership> {
        let line = format!("{node_id} 127.0.0.1:1@2 master - 0 0 {epoch} connected 0-16383\n");
        parse_nodes(Value::BulkString(line.into_bytes()))
    }

    #[tokio::test]
    async fn a_table_without_membership_leaves_the_known_membership() {
        let cluster = cluster();
        let owner = |port| [SlotOwner { master: address(port), slots: ALL_SLOTS.to_vec() }];
        cluster.update_table(&owner(1), membership("a", 1), false);
        // The ACL of this node denies CLUSTER NODES.
        cluster.update_table(&owner(1), None, false);
        let other = cluster.update_table(&owner(2), membership("b", 1), false);
        assert_eq!(other, TableUpdate::OtherCluster);
    }

    #[tokio::test]
    async fn the_target_of_a_redirect_counts_as_a_loss_once() {
        let cluster = cluster();
        assert!(cluster.redirect_target(&address(1)).is_some());
        assert_eq!(update(&cluster, &[(1, ALL_SLOTS)]), 0, "the first table");
        assert!(cluster.redirect_target(&address(2)).is_some());
        assert_eq!(cluster.context.losses.load(Ordering::Relaxed), 1);
        assert_eq!(update(&cluster, &[(1, &[]), (2, ALL_SLOTS)]), 1);
    }

    #[tokio::test]
    async fn a_table_is_ignored_if_it_has_a_lower_epoch_or_is_of_another_cluster() {
        let cluster = cluster();
        let offer = |port, node_id, epoch, adopt| {
            let owners = [SlotOwner { master: address(port), slots: ALL_SLOTS.to_vec() }];
            cluster.update_table(&owners, membership(node_id, epoch), adopt)
        };
        assert_eq!(offer(1, "a", 5, false), TableUpdate::Replaced);
        assert_eq!(offer(2, "a", 4, false), TableUpdate::Older);
        assert_eq!(offer(2, "a", 5, false), TableUpdate::Replaced, "the same epoch");
        assert_eq!(offer(2, "a", 5, false), TableUpdate::Unchanged);
        assert_eq!(offer(3, "b", 9, false), TableUpdate::OtherCluster);
        assert_eq!(offer(3, "b", 1, true), TableUpdate::Replaced, "it is adopted");
        assert_eq!(offer(2, "a", 9, false), TableUpdate::OtherCluster);
    }

    #[tokio::test]
    async fn redirects_lead_to_at_most_16_unlisted_nodes_between_two_tables() {
        let cluster = cluster();
        let follow = |port| cluster.redirect_target(&address(port)).is_some();
        update(&cluster, &[(1, ALL_SLOTS)]);
        for port in 2..18 {
            assert!(follow(port), "{port}");
        }
        assert!(!follow(18));
        assert!(follow(1) && follow(17), "a listed node, and one that is known already");
        update(&cluster, &[(1, ALL_SLOTS)]);
        assert_eq!(cluster.nodes().len(), 17, "they are kept until the next table");
        assert!(follow(18), "each table makes room");
        update(&cluster, &[(1, ALL_SLOTS)]);
        assert_eq!(cluster.nodes().len(), 2);
    }
}
