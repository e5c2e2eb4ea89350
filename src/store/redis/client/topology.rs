//! The way to the nodes that decide: by a master, or by a cluster's table.
//!
//! Not here: the ways themselves (`master`, `cluster`).

use std::sync::Arc;

use super::cluster::Cluster;
use super::node::Node;
use super::single_master::Master;

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
