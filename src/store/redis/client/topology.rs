//! The connections to Redis, whatever the topology: what the store sends its items through.
//!
//! Not here: what is sent (`script`, `args`), the topologies themselves (`master` for one server
//! and for sentinels, `cluster`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::cluster::Cluster;
use super::config::{RedisConfig, RedisConfigError, TopologyConfig};
use super::dialer::Context;
use super::info_poll::keep_count;
use super::node::Node;
use super::node_stats::NodeReport;
use super::sentinel::follow;
use super::single_master::Master;
use super::slot_refresh::keep_fresh;
use super::transport::{Replies, ScriptCall, ScriptCalls, Transport};
use crate::store::redis::script::library::Script;

/// How often a start looks whether it is connected yet.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) enum Topology {
    Master(Arc<Master>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Topology::Master(master) => master.node().into_iter().collect(),
            Topology::Cluster(cluster) => cluster.nodes(),
        }
    }
}

/// Open connections to Redis. Dropping them ends every connection.
#[derive(Debug)]
pub struct Connections {
    way: Arc<Topology>,
}

impl Connections {
    /// Opens connections, on the tokio runtime that it is called on, and returns at once: connections
    /// dial in the background, and until one is connected every item fails with
    /// [`NotConnected`](super::transport::SendErrorKind::NotConnected). `scripts` are loaded on every
    /// new connection.
    ///
    /// # Errors
    ///
    /// If no address is given, or a certificate does not parse.
    pub fn open(
        config: RedisConfig,
        scripts: Vec<&'static Script>,
    ) -> Result<Connections, RedisConfigError> {
        let topology = config.topology.clone();
        let context = Arc::new(Context::new(config, scripts)?);
        let trouble = Arc::new(Notify::new());
        let way = match topology {
            TopologyConfig::Single => {
                let master = Master::default();
                if let Some(address) = context.config.addresses.first() {
                    master.replace(Node::open(&context, address.clone(), &trouble));
                }
                Topology::Master(Arc::new(master))
            }
            TopologyConfig::Sentinel { .. } => {
                let master = Arc::new(Master::default());
                tokio::spawn(follow(Arc::clone(&context), Arc::downgrade(&master), trouble));
                Topology::Master(master)
            }
            TopologyConfig::Cluster => {
                let cluster = Arc::new(Cluster::new(Arc::clone(&context), trouble));
                tokio::spawn(keep_fresh(Arc::downgrade(&cluster)));
                Topology::Cluster(cluster)
            }
        };
        let way = Arc::new(way);
        if let Some(every) = context.config.census {
            tokio::spawn(keep_count(Arc::downgrade(&way), context, every));
        }
        Ok(Connections { way })
    }

    /// Whether every key can be reached: the master, or on a cluster the master of every slot, has
    /// a connection.
    pub fn is_connected(&self) -> bool {
        match &*self.way {
            Topology::Master(master) => master.node().is_some_and(|node| node.is_connected()),
            Topology::Cluster(cluster) => cluster.is_connected(),
        }
    }

    /// Waits until [`is_connected`](Self::is_connected). For a start and for tests: the way of a
    /// request never waits for a connection.
    pub async fn until_connected(&self) {
        while !self.is_connected() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The present nodes with their counters.
    pub fn report(&self) -> Vec<NodeReport> {
        self.way.nodes().iter().map(|node| node.report()).collect()
    }
}

impl Transport for Connections {
    fn is_cluster(&self) -> bool {
        matches!(*self.way, Topology::Cluster(_))
    }

    async fn send(&self, items: ScriptCalls) -> Replies {
        self.send_until(items, None).await
    }

    async fn send_until(&self, items: ScriptCalls, until: Option<Instant>) -> Replies {
        match &*self.way {
            // One item is all that a call sends here: there is nothing to tell apart.
            Topology::Master(master) => master.send(items).await,
            Topology::Cluster(cluster) => cluster.send(items, until).await,
        }
    }

    fn post(&self, item: ScriptCall) {
        match &*self.way {
            Topology::Master(master) => master.post(item),
            Topology::Cluster(cluster) => cluster.post(item),
        }
    }
}
