//! Redis client for one server, a master behind sentinels, or a cluster; implements [`Transport`].
//!
//! Not here: the topologies (`single_master`, `sentinel`, `cluster`), the commands (`script`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::client_context::ClientContext;
use super::cluster::Cluster;
use super::config::{RedisConfig, RedisConfigError, TopologyConfig};
use super::info_poll::poll_info;
use super::node::Node;
use super::node_stats::NodeReport;
use super::sentinel::follow_master;
use super::single_master::SingleMaster;
use super::slot_refresh::refresh_slot_table;
use super::transport::{NodeRequests, PendingCalls, Transport};
use crate::domain::FailureKind;
use crate::store::redis::script::library::{Script, ScriptCall};

/// Interval at which [`RedisClient::wait_until_connected`] checks the connections.
const CONNECTED_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Topology of a Redis deployment, which determines the node of each key: a single master, or the
/// slot table of a cluster.
#[derive(Debug)]
pub(crate) enum Topology {
    SingleMaster(Arc<SingleMaster>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Returns all known nodes: the master, or the nodes in the slot table of a cluster.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Topology::SingleMaster(master) => master.node().into_iter().collect(),
            Topology::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns the address of the master or, on a cluster, of the owner of a hash slot; `None` if it is
    /// not known.
    #[cfg(feature = "server")]
    pub(crate) fn address_of(&self, slot: u16) -> Option<super::config::Address> {
        let node = match self {
            Topology::SingleMaster(master) => master.node(),
            Topology::Cluster(cluster) => cluster.owner(slot),
        };
        node.map(|node| node.address().clone())
    }
}

/// Client of a Redis server, a Sentinel deployment, or a cluster. Dropping it closes its
/// connections.
#[derive(Debug)]
pub struct RedisClient {
    topology: Arc<Topology>,
    context: Arc<ClientContext>,
    /// Whether Redis has been reached at least once.
    was_connected: AtomicBool,
}

impl RedisClient {
    /// Starts connecting in the background, on the current tokio runtime, and returns immediately.
    /// Until a connection is open, script calls fail with
    /// [`NotConnected`](FailureKind::NotConnected). `scripts` are loaded on
    /// every new connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the list of addresses is empty or a certificate cannot be parsed.
    pub fn open(
        config: RedisConfig,
        scripts: Vec<&'static Script>,
    ) -> Result<RedisClient, RedisConfigError> {
        let topology = config.topology.clone();
        let context = Arc::new(ClientContext::new(config, scripts)?);
        let refresh_needed = Arc::new(Notify::new());
        let topology = match topology {
            TopologyConfig::Single => {
                let master = SingleMaster::default();
                if let Some(address) = context.config.addresses.first() {
                    master.replace(Node::open(&context, address.clone(), &refresh_needed, None));
                }
                Topology::SingleMaster(Arc::new(master))
            }
            TopologyConfig::Sentinel { .. } => {
                let master = Arc::new(SingleMaster::default());
                let (context, weak) = (Arc::clone(&context), Arc::downgrade(&master));
                tokio::spawn(follow_master(context, weak, refresh_needed));
                Topology::SingleMaster(master)
            }
            TopologyConfig::Cluster => {
                let cluster = Arc::new(Cluster::new(Arc::clone(&context), refresh_needed));
                tokio::spawn(refresh_slot_table(Arc::downgrade(&cluster)));
                Topology::Cluster(cluster)
            }
        };
        let topology = Arc::new(topology);
        if let Some(interval) = context.config.info_interval {
            tokio::spawn(poll_info(Arc::downgrade(&topology), Arc::clone(&context), interval));
        }
        let was_connected = AtomicBool::new(false);
        Ok(RedisClient { topology, context, was_connected })
    }

    /// Returns whether a connection is open to the master or, on a cluster, to every node that owns
    /// hash slots.
    pub fn is_connected(&self) -> bool {
        match &*self.topology {
            Topology::SingleMaster(master) => master.node().is_some_and(|node| node.is_connected()),
            Topology::Cluster(cluster) => cluster.is_connected(),
        }
    }

    /// Returns the configured addresses, without credentials: of the server, of nodes of the cluster, or
    /// the master's name and the addresses of the sentinels.
    pub fn addresses(&self) -> String {
        let config = &self.context.config;
        let master = match &config.topology {
            TopologyConfig::Sentinel { master, .. } => Some(master.clone()),
            TopologyConfig::Single | TopologyConfig::Cluster => None,
        };
        let addresses = config.addresses.iter().map(ToString::to_string);
        master.into_iter().chain(addresses).collect::<Vec<_>>().join(",")
    }

    /// Returns what connections beside those for script calls need.
    #[cfg(feature = "server")]
    pub(crate) fn parts(&self) -> (Arc<ClientContext>, Arc<Topology>) {
        (Arc::clone(&self.context), Arc::clone(&self.topology))
    }

    fn cluster(&self) -> Option<&Cluster> {
        match &*self.topology {
            Topology::SingleMaster(_) => None,
            Topology::Cluster(cluster) => Some(cluster),
        }
    }

    /// Returns whether Redis is connected or, on a cluster, those of its nodes that can be reached.
    fn is_reached(&self) -> bool {
        self.cluster().map_or_else(|| self.is_connected(), Cluster::is_reached)
    }

    /// Returns whether Redis has been reached at least once. After that, the circuit breakers show
    /// whether the nodes are available.
    pub fn was_connected(&self) -> bool {
        let was_connected = self.was_connected.load(Ordering::Relaxed) || self.is_reached();
        if was_connected {
            self.was_connected.store(true, Ordering::Relaxed);
        }
        was_connected
    }

    /// Waits until Redis is connected or, on a cluster, those of its nodes that can be reached. Used
    /// at startup and in tests. No request waits for a connection.
    pub async fn wait_until_connected(&self) {
        while !self.is_reached() {
            tokio::time::sleep(CONNECTED_POLL_INTERVAL).await;
        }
    }

    /// Waits until every queued command has been answered or has failed. Used at shutdown.
    pub async fn wait_until_idle(&self) {
        while !self.topology.nodes().iter().all(|node| node.is_idle()) {
            tokio::time::sleep(CONNECTED_POLL_INTERVAL).await;
        }
    }

    /// Returns a report on every node.
    pub fn report(&self) -> Vec<NodeReport> {
        self.topology.nodes().iter().map(|node| node.report()).collect()
    }
}

impl Transport for RedisClient {
    fn is_cluster(&self) -> bool {
        self.cluster().is_some()
    }

    fn submit(&self, calls: NodeRequests) -> PendingCalls {
        match &*self.topology {
            Topology::SingleMaster(master) => master.submit(calls),
            Topology::Cluster(cluster) => cluster.submit(calls),
        }
    }

    fn send_in_background(&self, call: ScriptCall) {
        match &*self.topology {
            Topology::SingleMaster(master) => master.send_in_background(call),
            Topology::Cluster(cluster) => cluster.send_in_background(call),
        }
    }

    fn node_of(&self, slot: u16) -> Option<u16> {
        self.cluster()?.node_of(slot)
    }

    fn redirects(&self) -> u64 {
        self.cluster().map_or(0, Cluster::redirects)
    }

    fn counter_losses(&self) -> u64 {
        self.context.losses.load(Ordering::Acquire)
    }

    fn failure(&self, kind: FailureKind) -> Option<String> {
        self.context.failure(kind)
    }

    fn lost_connections(&self) -> u64 {
        self.context.lost_connections.load(Ordering::Acquire)
    }
}
